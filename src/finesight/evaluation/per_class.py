"""Scores by class and by super-category, which show where look-alikes are hard to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.layouts.layout import LAYOUTS
from finesight.data.sources import ImageSource
from finesight.evaluation.bootstrap import Classifiers
from finesight.evaluation.metrics import ClassifierMetric, Metric, Values, metrics_of, retrieval_metrics
from finesight.evaluation.retrieval import RetrievalScores, Ties, retrieval
from finesight.features.wide import Features, WideRows
from finesight.io.table import records_text

Row = dict[str, Any]


def super_categories(source: ImageSource) -> tuple[str, ...] | None:
    """Return the super-category of each of ``source.classes``; None where the dataset has none."""
    layout = LAYOUTS.get(source.kind)
    return None if layout is None else layout.super_categories(source)


def query_labels(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the label of each query of ``retrieval``: images that have one and are not alone in their class."""
    known = labels[labels >= 0]
    _, number, count = np.unique(known, return_inverse=True, return_counts=True)
    return known[count[number] > 1]


def class_rows(
    source: ImageSource,
    labels: NDArray[np.int64],
    retrieval: RetrievalScores,
    test_labels: NDArray[np.int64],
    classifiers: Classifiers,
) -> list[Row]:
    """Return a row for each class that has a query or a test image, the worst rank-1 (then mAP) first.

    ``labels`` are those of the searched images, in order; ``classifiers`` has the values of each labeled test image.
    Scores are None where a class has nothing to score.
    """
    of_query, of_image = query_labels(labels), test_labels[test_labels >= 0]
    supers = super_categories(source)
    columns = {
        piece.column.format(variant): (piece, per_image[piece.key])
        for family, variants in classifiers.items()
        for variant, per_image in variants.items()
        for piece in metrics_of(ClassifierMetric, family)  # type: ignore[type-abstract]
        if piece.shown
    }
    rows = []
    for label in np.union1d(of_query, of_image).tolist():
        mine = of_query == label
        row: Row = {"class": source.classes[label]}
        if supers is not None:
            row["super-category"] = supers[label]
        row["queries"] = int(mine.sum())
        row |= {piece.column: _score(piece, retrieval.per_query[piece.key][mine]) for piece in retrieval_metrics()}
        if columns:
            own = of_image == label
            row["test_images"] = int(own.sum())
            row |= {name: _score(piece, values[own]) for name, (piece, values) in columns.items()}
        rows.append(row)
    return sorted(rows, key=lambda row: tuple(101.0 if row[name] is None else row[name] for name in ("rank1", "mAP")))


def super_rows(
    source: ImageSource, features: Features, labels: NDArray[np.int64], queries: RetrievalScores, ties: Ties = "first"
) -> list[Row] | None:
    """Return a row for each super-category, in the order of their names; None if the dataset has none.

    ``rank1`` and ``mAP`` are of its queries searching *all* images. ``rank1_own`` and ``mAP_own`` are of the same
    queries searching its own images only, as if it were a dataset of its own.
    """
    supers = super_categories(source)
    if supers is None:
        return None
    names = np.array(supers)
    of_query = query_labels(labels)
    metrics = [piece for piece in retrieval_metrics() if piece.by_super_category]
    rows = []
    for name in sorted(set(names[np.unique(of_query)].tolist())):
        mine = names[of_query] == name
        inside = (labels >= 0) & (names[labels] == name)
        own = _own_gallery(features, labels, inside, ties)
        row: Row = {"super-category": name, "classes": len(np.unique(of_query[mine])), "queries": int(mine.sum())}
        row |= {piece.key: _score(piece, queries.per_query[piece.key][mine]) for piece in metrics}
        row |= {f"{piece.key}_own": None if own is None else own.score(piece.key) for piece in metrics}
        rows.append(row)
    return rows


def _own_gallery(
    features: Features, labels: NDArray[np.int64], inside: NDArray[np.bool_], ties: Ties
) -> RetrievalScores | None:
    """Return the scores within a super-category; None if it has one class, where every image found would be right."""
    if len(np.unique(labels[inside])) < 2:
        return None
    chosen = features[inside] if isinstance(features, WideRows) else np.asarray(features)[inside]
    return retrieval(chosen, labels[inside], ties=ties)


def _score(metric: Metric, values: Values) -> float | None:
    return metric.score(values) if len(values) else None


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, with two decimals and an empty cell where there is no score."""
    return records_text(
        [{key: f"{value:.2f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    )
