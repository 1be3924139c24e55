"""Score the features of a file, whichever program made them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource, open_source, source_of_rows
from finesight.errors import FineSightError
from finesight.evaluation.evaluate import label_parts, split_indices
from finesight.evaluation.linear import linear_probe
from finesight.evaluation.protocols import Protocol, provenance
from finesight.evaluation.protocols.finesight import FineSightProtocol
from finesight.evaluation.scoring import Scored, score_features
from finesight.features.reading import FeatureTable, read_features
from finesight.io.console import console


def evaluate_features(
    features: str | Path | FeatureTable,
    data: str | Path | None = None,
    *,
    linear: bool = True,
    fractions: Sequence[int] = (100, 50, 20),
    protocol: Protocol | None = None,
    limit_classes: int | None = None,
    progress: bool = True,
) -> Scored:
    """Score features as ``finesight evaluate`` does: retrieval, linear probe and kNN; there is no attention to locate.

    Labels and splits are those of ``data``, found by the paths, or the columns of the file. Raises ``FineSightError``
    if no image has a label, or an image of ``data`` has no feature.
    """
    table = features if isinstance(features, FeatureTable) else read_features(features)
    protocol = protocol or FineSightProtocol()
    source, rows = _labeled(table, data, limit_classes)
    train, test, split = split_indices(source)
    if linear and not len(train):
        raise FineSightError(
            f"{table.file} has no train images to fit the linear probe on: leave it out (--no-linear)."
        )
    values = table.features[rows]
    parts = label_parts(protocol, source, train, fractions, limit_classes) if linear or protocol.save_labels else {}
    probes = None
    if linear:
        assert source.labels is not None
        probes = linear_probe(
            values[train],
            source.labels[train],
            values[test],
            source.labels[test],
            fractions=tuple(parts),
            seed=protocol.seed,
            progress=(lambda text: console.print(text, style="dim")) if progress else None,
            parts=parts,
        )
    search_all = split == "random" and len(train) > 0
    train_values = values[train] if linear or search_all else None
    scored = score_features(source, train, test, values[test], train_values, protocol, probes, search_all=search_all)
    scored.scores["setting"] = {
        "features": table.file.name,
        "width": table.features.shape[1],
        "split": split,
        "train_images": len(train),
        "test_images": len(test),
        **provenance(protocol, source, probes or {}),
    }
    return scored


def _labeled(
    table: FeatureTable, data: str | Path | None, limit_classes: int | None
) -> tuple[ImageSource, NDArray[np.int64]]:
    """Return the images with their labels, and the row of the table of each."""
    if data is None:
        source = source_of_rows(table.file, "features", table.paths, table.labels or [], table.splits or [])
        rows = np.arange(len(table))
    else:
        source = open_source(data)
        places = {path: row for row, path in enumerate(table.paths)}
        found = [places.get(path, places.get(str(source.root / path), -1)) for path in source.paths.tolist()]
        rows = np.array(found, np.int64)
        there = rows >= 0
        if not there.any():
            raise FineSightError(
                f"No image of {data} is in {table.file}: paths there are as {table.paths[0]!r}, and here as "
                f"{str(source.paths[0])!r}."
            )
        if not there.all():
            console.print(f"{int((~there).sum()):,} images of {data} have no feature and are left out.", markup=False)
        source, rows = source.select(there), rows[there]
    if source.labels is None or not (source.labels >= 0).any():
        raise FineSightError(
            f"{table.file if data is None else data} has no labels, and scores need them: give --data a labeled source "
            "with the same paths, or the file a column label."
        )
    if limit_classes is not None:
        kept = (source.labels >= 0) & (source.labels < limit_classes)
        source, rows = source.first_classes(limit_classes), rows[kept]
    return source, rows
