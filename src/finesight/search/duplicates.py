"""Find images of an index that are the same: byte for byte, to the eye, or by their features."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from finesight.data.decode import read_image
from finesight.data.image_hash import content_hash, group_duplicates, merge_groups, perceptual_hash
from finesight.errors import FineSightError, SkipImage
from finesight.io.natural import natural_key
from finesight.search.base import Ids, Index, IndexItem
from finesight.search.clusters import Progress
from finesight.search.image_files import item_file

THRESHOLD = 0.98  # cosine
HELD_NUMBERS = 1 << 25  # of vectors held while all others are read: 16,384 images of 2048 dimensions
ROWS = 2048  # that are read at a time


@dataclass(frozen=True)
class DuplicateItems:
    """Images connected by pairs that are the same, the best to keep first: most pixels, then most bytes."""

    kind: str  # "bytes": equal files; "picture": the same to the eye; "features": alike to the network
    items: tuple[IndexItem, ...]
    scores: tuple[float, ...]  # cosine of each with the first


def find_duplicates(
    index: Index,
    threshold: float = THRESHOLD,
    *,
    space: str | None = None,
    tell: Progress | None = None,
    held_numbers: int = HELD_NUMBERS,
    rows: int = ROWS,
) -> list[DuplicateItems]:
    """Return groups of two or more images, the largest first. Equal files are found whatever the threshold.

    ``held_numbers`` and ``rows`` bound the memory: numbers of the vectors held, and rows compared with them at a time.
    """
    if not 0 < threshold <= 1:
        raise FineSightError(f"The threshold must be above 0 and at most 1, not {threshold:g}.")
    space = index.meta.spaces[0] if space is None else space
    listed = index.list_items()
    order = np.argsort(listed.ids)
    contents = _contents(index.meta.root, listed.paths[order].tolist(), listed.bytes[order])
    group = group_duplicates(contents, [None] * len(contents))
    held = max(1, held_numbers // index.meta.width(space))
    _merge_similar(index, space, threshold, listed.ids[order], group, held, rows, tell or (lambda done, total: None))
    positions = np.argsort(group, kind="stable")
    parts = np.split(positions, np.flatnonzero(np.diff(group[positions])) + 1)
    found = [
        _group(index, space, listed.ids[order][part], [contents[i] for i in part.tolist()])
        for part in parts
        if len(part) > 1
    ]
    return sorted(filter(None, found), key=lambda one: (-len(one.items), natural_key(one.items[0].path)))


def _merge_similar(
    index: Index, space: str, threshold: float, ids: Ids, group: Ids, held: int, rows: int, tell: Progress
) -> None:
    """Merge, in ``group``, images with a cosine of at least ``threshold``. ``ids`` are all, ascending.

    ``held`` vectors are in memory while all are read, ``rows`` at a time; then the next are held.
    """
    starts = range(0, len(ids), held)
    for turn, start in enumerate(starts):
        mine = index.vectors(ids[start : start + held], space)
        for block, vectors in index.blocks(space, rows):
            there = np.searchsorted(ids, block)
            sure = (there < len(ids)) & (there >= start)  # with earlier ones they were compared when those were held
            sure[sure] = ids[there[sure]] == block[sure]  # the index may have grown meanwhile
            for first in range(0, len(mine), rows):
                left, right = np.nonzero(mine[first : first + rows] @ vectors[sure].T >= threshold)
                one, two = start + first + left, there[sure][right]
                if (one != two).any():
                    merge_groups(group, one[one != two], two[one != two])
            tell(turn * len(ids) + min(int(there.max(initial=0)) + 1, len(ids)), len(starts) * len(ids))
    tell(1, 1)


def _contents(root: str, paths: list[str], sizes: Ids) -> list[bytes | None]:
    """Return a hash of every file that has the size of another one; only those are read."""
    values, counts = np.unique(sizes, return_counts=True)
    shared = np.isin(sizes, values[counts > 1])
    hashes: list[bytes | None] = [None] * len(paths)
    for n in np.flatnonzero(shared).tolist():
        if file := item_file(root, paths[n]):
            with suppress(OSError):
                hashes[n] = content_hash(file)
    return hashes


def _group(index: Index, space: str, ids: Ids, contents: list[bytes | None]) -> DuplicateItems | None:
    found = [(item, content) for item, content in zip(index.items(ids.tolist()), contents, strict=True) if item]
    found.sort(key=lambda pair: (-pair[0].width * pair[0].height, -pair[0].bytes, pair[0].path))
    if len(found) < 2:
        return None  # removed meanwhile
    items = tuple(item for item, _ in found)
    vectors = index.vectors(np.array([item.id for item in items]), space)
    scores = np.minimum(vectors.astype(np.float64) @ vectors[0].astype(np.float64), 1)
    return DuplicateItems(
        _kind(index.meta.root, items, [content for _, content in found]), items, tuple(scores.tolist())
    )


def _kind(root: str, items: tuple[IndexItem, ...], contents: list[bytes | None]) -> str:
    """Return the strictest kind that holds for all of them."""
    if contents[0] is not None and len(set(contents)) == 1:
        return "bytes"
    hashes: list[int | None] = [None] * len(items)
    for n, item in enumerate(items):
        if file := item_file(root, item.path):
            with suppress(SkipImage, OSError):
                hashes[n] = perceptual_hash(read_image(file))
    return "picture" if not group_duplicates(contents, hashes).any() else "features"
