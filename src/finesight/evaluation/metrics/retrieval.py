"""rank-1, rank-5 and mAP of leave-one-out retrieval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finesight.evaluation.metrics import RetrievalMetric, metric


@metric
class Rank1(RetrievalMetric):
    """Whether the nearest image is of the class of the query."""

    key, title, binary = "rank1", "rank-1", True
    words = "the nearest image is of the same class"

    def value(self, positions: NDArray[np.int64], gallery: int) -> float:
        return bool(positions[0] <= 1)


@metric
class Rank5(RetrievalMetric):
    """Whether any of the five nearest images is of the class of the query."""

    key, title, binary = "rank5", "rank-5", True
    words = "one of the five nearest images is"
    by_super_category = False

    def value(self, positions: NDArray[np.int64], gallery: int) -> float:
        return bool(positions[0] <= 5)


@metric
class MeanAveragePrecision(RetrievalMetric):
    """The mean, over the images of the class, of k / (position of the k-th of them) in the full ranking."""

    key, title = "mAP", "mAP"
    words = "how early the images of the same class come in the whole ranking"

    @property
    def query_column(self) -> str:
        return "ap"

    def value(self, positions: NDArray[np.int64], gallery: int) -> float:
        return float(np.mean(np.arange(1, len(positions) + 1) / positions))
