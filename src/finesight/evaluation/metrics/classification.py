"""Accuracy of the linear probe and of the vote of the nearest train images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.evaluation.metrics import ClassifierMetric, Values, metric


class Top1(ClassifierMetric):
    """Whether the first prediction is right."""

    key, binary = "top1", True

    @property
    def column(self) -> str:
        return self.family + "_{}"

    def values(self, places: NDArray[np.int64]) -> Values:
        return places <= 1


@metric
class LinearTop1(Top1):
    family, title = "linear", "linear {} %"
    words = "a classifier on frozen features, with that share of the labels"


@metric
class LinearTop5(ClassifierMetric):
    """Whether the right class is among the first five predictions."""

    family, key, title, binary = "linear", "top5", "linear top-5 {} %", True
    shown = False

    def values(self, places: NDArray[np.int64]) -> Values:
        return places <= 5


@metric
class NeighborsTop1(Top1):
    family, title = "knn", "{}-NN"
    words = "a vote of that many nearest train images"

    def shown_scores(self, scores: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return list(super().shown_scores(scores))[-1:]  # the largest vote is enough for a table
