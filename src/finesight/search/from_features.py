"""Make an index of features that are in a file already, whichever program made them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from finesight.errors import FineSightError
from finesight.features.embedder import unit
from finesight.features.reading import FeatureTable
from finesight.io.console import without_password
from finesight.io.progress import PhaseProgress
from finesight.search.base import FEATURES, Index, IndexItem, IndexMeta, NewItems
from finesight.search.engines import create_index, index_exists
from finesight.search.image_files import assign_ids

BATCH = 4096  # items that are added together


def index_features(
    table: FeatureTable, where: str | Path, root: str | Path | None = None, *, callback: PhaseProgress | None = None
) -> Index:
    """Make an index at ``where`` of a table of features and return it; it can be searched by vectors, not by pictures.

    ``root`` is the folder that the paths are relative to, by default that of the file. Raises ``FineSightError`` if
    there is an index already, a path is there twice, or a feature has no direction.
    """
    if index_exists(where):
        raise FineSightError(f"There is an index in {without_password(where)} already: give --index another place.")
    folder = os.path.abspath(root if root is not None else table.file.parent)
    paths = [os.path.relpath(path, folder) if os.path.isabs(path) else path for path in table.paths]
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise FineSightError(f"{table.file} has {twice[0]!r} more than once: an index has one feature of an image.")
    if len(empty := np.flatnonzero(~table.features.any(1))):
        raise FineSightError(f"The feature of {paths[empty[0]]!r} in {table.file} is zero: it has no direction.")
    digest = hashlib.blake2b(np.ascontiguousarray(table.features).data, digest_size=16).hexdigest()
    meta = IndexMeta(
        fingerprint=digest,
        method=FEATURES,
        resolution=1,  # no picture is looked at
        spaces=(FEATURES,),
        dimension=table.features.shape[1],
        root=folder,
        run=os.path.abspath(table.file),
    )
    with tempfile.TemporaryDirectory() as nothing:  # the place of an encoder
        index = create_index(where, meta, Path(nothing))
    report, ids = callback or (lambda phase, done, total: None), assign_ids(paths, {})
    with index.writing():
        for start in range(0, len(paths), BATCH):
            part = paths[start : start + BATCH]
            items = [_item(ids[path], path, folder) for path in part]
            index.add(NewItems(items, {FEATURES: unit(table.features[start : start + BATCH])}))
            report("embedding", start + len(part), len(paths))
        report("finishing", 0, 1)
        index.finish()
        report("finishing", 1, 1)
    return index


def _item(number: int, path: str, root: str) -> IndexItem:
    try:
        status = os.stat(os.path.join(root, path))
        size, time = status.st_size, status.st_mtime_ns
    except (OSError, ValueError):  # the images need not be here
        size = time = 0
    return IndexItem(number, path, size, time, 0, 0, np.ones((1, 1), np.float32))
