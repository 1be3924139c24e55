"""k nearest neighbors from train to test: what a feature is worth without fitting anything.

The vote is weighted (Wu et al., 2018; the DINO evaluation): a neighbor at cosine s adds exp(s / 0.07) to its class.
Nothing is chosen, so nothing can leak: k is fixed, 1 and 20.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.retrieval import cross_rows
from finesight.features.wide import Features, WideRows

NEIGHBORS = (1, 20)
TEMPERATURE = 0.07


def knn_hits(
    train_x: Features,
    train_y: NDArray[np.int64],
    test_x: Features,
    test_y: NDArray[np.int64],
    neighbors: Sequence[int] = NEIGHBORS,
) -> dict[int, NDArray[np.bool_]]:
    """For each k, whether the vote gives each labeled test image its class.

    Equally similar train images rank by index, equal votes go to the lowest label. With fewer than k train images all
    of them vote. Images without a label (-1) take no part. Cosines are exact (``retrieval``).
    """
    if not neighbors or min(neighbors) < 1:
        raise ValueError(f"k must be at least 1, not {tuple(neighbors)}")
    train_x, train_y = _labeled(train_x, train_y, "train")
    test_x, test_y = _labeled(test_x, test_y, "test")
    classes, number = np.unique(train_y, return_inverse=True)
    most = min(max(neighbors), len(train_y))
    right = {k: np.zeros(len(test_y), dtype=bool) for k in neighbors}
    for n, (cosines, label) in enumerate(zip(cross_rows(test_x, train_x), test_y.tolist(), strict=True)):
        near = _nearest(cosines, most)
        weights = np.exp(cosines[near] / TEMPERATURE)
        for k, hit in right.items():
            votes = np.bincount(number[near[:k]], weights[:k], len(classes))  # in the order given: most alike first
            hit[n] = classes[np.argmax(votes)] == label
    return right


def _nearest(cosines: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """The k largest, descending; of equal ones the first. Sorts only those that can be among them."""
    least = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
    candidates = np.flatnonzero(cosines >= least)
    return candidates[np.argsort(-cosines[candidates], kind="stable")[:k]]


def _labeled(x: Features, y: NDArray[np.int64], split: str) -> tuple[Features, NDArray[np.int64]]:
    labels = np.asarray(y)
    if labels.shape != (len(x),):
        raise ValueError(f"{len(x)} {split} features but labels of shape {labels.shape}")
    kept = labels >= 0
    if not kept.any():
        raise FineSightError(f"kNN needs class labels and no {split} image has one.")
    rows = x if isinstance(x, WideRows) else np.asarray(x)
    return rows[kept], labels[kept]
