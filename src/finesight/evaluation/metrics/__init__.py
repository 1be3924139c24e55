"""Evaluation metrics that describe themselves.

A metric is one class. It says where its score stands in the JSON of ``finesight evaluate``, what tables call it and
which value one query or test image has. The score is the mean of these values; intervals and paired comparisons
resample them. Tables, the report, ``finesight compare`` and the bench read ``METRICS`` and list no metric themselves.

A new retrieval metric is one file; another distribution names it in the entry-point group ``finesight.metrics``::

    @metric
    class RPrecision(RetrievalMetric):
        key, title = "r_precision", "R-precision"
        words = "the share of the class among as many nearest images as the class has others"

        def value(self, positions, gallery):
            return float(np.mean(positions <= len(positions)))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finesight.registry import Registry

FAMILIES = ("retrieval", "linear", "knn", "localization")  # in the order of the tables
Values = NDArray[Any]  # (queries,), bool or float64


class Metric(ABC):
    """A score with its names. Subclass one of the families below and register the class with ``@metric``.

    The score of a system is ``scale`` times the mean of its values over the queries (or test images).
    """

    family: ClassVar[str]  # where scores are kept: ``scores[family][key]``, or ``scores[family][variant][key]``
    key: ClassVar[str]
    title: ClassVar[str]  # the head of its column in tables; {} stands for the variant
    words: ClassVar[str] = ""  # what it says, for the report: "the nearest image is of the same class"
    shown: ClassVar[bool] = True  # whether tables have it; the JSON always has
    binary: ClassVar[bool] = False  # whether the value of a query is a hit or a miss
    higher_is_better: ClassVar[bool] = True
    scale: ClassVar[float] = 100.0
    unit: ClassVar[str] = "%"

    @property
    def column(self) -> str:
        """Its column in the scores by class; {} stands for the variant."""
        return self.key

    @property
    def dtype(self) -> type:
        """The NumPy type of its values."""
        return np.bool_ if self.binary else np.float64

    def score(self, values: ArrayLike) -> float:
        """Return the score of these values."""
        return self.scale * float(np.mean(np.asarray(values)))

    def head(self, variant: str = "") -> str:
        """Return the head of its column in tables."""
        return self.title.format(variant) + ("" if self.higher_is_better else " (lower is better)")

    def shown_scores(self, scores: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Return each variant that tables show, with the object that holds its score under ``key``."""
        found = scores.get(self.family)
        return [("", found)] if found is not None and self.key in found else []


class RetrievalMetric(Metric):
    """A metric of a ranking: every image is a query and searches all others."""

    family = "retrieval"
    by_super_category: ClassVar[bool] = True  # whether the table of super-categories has it

    @property
    def query_column(self) -> str:
        """Its column in files that have a row for each query."""
        return self.key

    @abstractmethod
    def value(self, positions: NDArray[np.int64], gallery: int) -> float:
        """Return the value of one query.

        ``positions`` are those of the images of its class in the ranking, ascending and from 1; there is at least one.
        ``gallery`` is the number of ranked images.
        """


class ClassifierMetric(Metric):
    """A metric of a classifier; its variants are shares of the labels (``linear``) or neighbors that vote (``knn``)."""

    @abstractmethod
    def values(self, places: NDArray[np.int64]) -> Values:
        """Return the values of the test images.

        ``places`` are those of the right class in the order of the predictions, from 1; above 5 they may be given as 6.
        """

    def shown_scores(self, scores: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return [(variant, found) for variant, found in scores.get(self.family, {}).items() if self.key in found]


class LocalizationMetric(Metric):
    """A metric of an attention map against the object."""

    family = "localization"

    @abstractmethod
    def value(self, attention: ArrayLike, mask: ArrayLike) -> float:
        """Return the value of one image: attention (H, W), not negative, and the object (h, w), not empty."""


METRICS: Registry[Metric] = Registry("metric", ("finesight.evaluation.metrics",), "finesight.metrics")
C = TypeVar("C", bound=type[Metric])
M = TypeVar("M", bound=Metric)


def metric(cls: C) -> C:
    """Register a metric as ``family.key``."""
    METRICS.register(f"{cls.family}.{cls.key}", cls())
    return cls


def metrics_of(kind: type[M], family: str | None = None) -> list[M]:
    """Return the registered metrics of a class (and family), in the order of the tables."""
    found = [piece for piece in METRICS.values() if isinstance(piece, kind) and family in (None, piece.family)]
    return sorted(found, key=lambda piece: FAMILIES.index(piece.family))


def retrieval_metrics() -> list[RetrievalMetric]:
    """Return the registered metrics of retrieval: rank-1, rank-5, mAP and those of other distributions."""
    return metrics_of(RetrievalMetric)  # type: ignore[type-abstract]


def classifier_values(family: str, places: NDArray[np.int64]) -> dict[str, Values]:
    """Return the values of every metric of a family of classifiers, by key."""
    return {piece.key: piece.values(places) for piece in metrics_of(ClassifierMetric, family)}  # type: ignore[type-abstract]
