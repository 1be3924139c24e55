"""Scores by class and by super-category: which look-alikes are hard, and is it the species or the kind of animal?"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource
from finesight.evaluation.retrieval import RetrievalScores, Ties, retrieval
from finesight.features.wide import Features, WideRows

Row = dict[str, Any]


def super_categories(source: ImageSource) -> tuple[str, ...] | None:
    """Of every class, in the order of ``source.classes``; None where the dataset has none."""
    if source.kind == "inat2019":
        from finesight.data.layouts import inat

        return inat.super_categories(source)
    if source.kind == "cifar100":
        from finesight.data.layouts.cifar import coarse_labels

        return coarse_labels(source)
    return None


def query_labels(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The label of each query of ``retrieval``: images that have one and are not alone in their class."""
    known = labels[labels >= 0]
    _, number, count = np.unique(known, return_inverse=True, return_counts=True)
    return known[count[number] > 1]


def class_rows(
    source: ImageSource,
    labels: NDArray[np.int64],
    queries: RetrievalScores,
    test_labels: NDArray[np.int64],
    hits: Mapping[str, NDArray[np.bool_]],
) -> list[Row]:
    """One a class that has a query or a test image, the worst rank-1 first; of equal ones the lowest mAP.

    ``labels`` are those of the searched images, in order; ``hits`` has what each labeled test image gave, by the name
    of a column. Scores are in percent, None where a class has nothing to score.
    """
    asked, tested = query_labels(labels), test_labels[test_labels >= 0]
    supers = super_categories(source)
    columns = {"rank1": queries.hit1, "rank5": queries.hit5, "mAP": queries.ap}
    rows = []
    for label in np.union1d(asked, tested).tolist():
        mine = asked == label
        row: Row = {"class": source.classes[label]}
        if supers is not None:
            row["super-category"] = supers[label]
        row["queries"] = int(mine.sum())
        row |= {name: _mean(values[mine]) for name, values in columns.items()}
        if hits:
            own = tested == label
            row |= {"test_images": int(own.sum())} | {name: _mean(values[own]) for name, values in hits.items()}
        rows.append(row)
    return sorted(rows, key=lambda row: tuple(101.0 if row[name] is None else row[name] for name in ("rank1", "mAP")))


def super_rows(
    source: ImageSource, features: Features, labels: NDArray[np.int64], queries: RetrievalScores, ties: Ties = "first"
) -> list[Row] | None:
    """One a super-category, in the order of their names; None where the dataset has none.

    ``rank1`` and ``mAP`` are of its queries searching *all* images. ``rank1_own`` and ``mAP_own`` are of the same
    queries searching its own images only: a harder question put to fewer images, as if it were a dataset of its own.
    """
    supers = super_categories(source)
    if supers is None:
        return None
    names = np.array(supers)
    asked = query_labels(labels)
    rows = []
    for name in sorted(set(names[np.unique(asked)].tolist())):
        mine = names[asked] == name
        inside = (labels >= 0) & (names[labels] == name)
        own = _own_gallery(features, labels, inside, ties)
        rows.append(
            {
                "super-category": name,
                "classes": len(np.unique(asked[mine])),
                "queries": int(mine.sum()),
                "rank1": _mean(queries.hit1[mine]),
                "mAP": _mean(queries.ap[mine]),
                "rank1_own": None if own is None else own.rank1,
                "mAP_own": None if own is None else own.mAP,
            }
        )
    return rows


def _own_gallery(
    features: Features, labels: NDArray[np.int64], inside: NDArray[np.bool_], ties: Ties
) -> RetrievalScores | None:
    """None where a super-category has one class: every image found would be right."""
    if len(np.unique(labels[inside])) < 2:
        return None
    chosen = features[inside] if isinstance(features, WideRows) else np.asarray(features)[inside]
    return retrieval(chosen, labels[inside], ties=ties)


def _mean(values: NDArray[np.bool_] | NDArray[np.float64]) -> float | None:
    return 100 * float(np.mean(values)) if len(values) else None


def as_csv(rows: Sequence[Row]) -> str:
    """Two decimals; an empty cell where there is nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.2f}" if isinstance(value, float) else value for key, value in row.items()})
    return text.getvalue()
