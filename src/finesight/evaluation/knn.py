"""Classify test images by their nearest train images: what a feature is worth without fitting anything.

The vote is weighted (Wu et al., 2018; the DINO evaluation): a neighbor at cosine s adds exp(s / 0.07) to its class.
No setting is chosen: k is fixed, 1 and 20.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.linear import class_index
from finesight.evaluation.retrieval import cross_rows, nearest_first
from finesight.features.wide import Features, WideRows

NEIGHBORS = (1, 20)
TEMPERATURE = 0.07


def knn_places(
    train_x: Features,
    train_y: NDArray[np.int64],
    test_x: Features,
    test_y: NDArray[np.int64],
    neighbors: Sequence[int] = NEIGHBORS,
) -> dict[int, NDArray[np.int64]]:
    """Return, for each k, the place of the right class in the vote for each labeled test image, from 1.

    Equally similar train images rank by index, of equal votes the lowest label comes first; a class that train lacks
    comes last. With fewer than k train images all of them vote. Images without a label (-1) take no part. Cosines are
    exact (``retrieval``).
    """
    if not neighbors or min(neighbors) < 1:
        raise ValueError(f"k must be at least 1, not {tuple(neighbors)}")
    train_x, train_y = _labeled(train_x, train_y, "train")
    test_x, test_y = _labeled(test_x, test_y, "test")
    classes, number = np.unique(train_y, return_inverse=True)
    most = min(max(neighbors), len(train_y))
    own = class_index(classes, test_y)
    places = {k: np.full(len(test_y), len(classes) + 1) for k in neighbors}
    for n, (cosines, index) in enumerate(zip(cross_rows(test_x, train_x), own.tolist(), strict=True)):
        near = nearest_first(cosines, most)
        weights = np.exp(cosines[near] / TEMPERATURE)
        for k, place in places.items():
            votes = np.bincount(number[near[:k]], weights[:k], len(classes))  # in the order given: most alike first
            if index >= 0:
                place[n] = 1 + (votes > votes[index]).sum() + (votes[:index] == votes[index]).sum()
    return places


def _labeled(x: Features, y: NDArray[np.int64], split: str) -> tuple[Features, NDArray[np.int64]]:
    labels = np.asarray(y)
    if labels.shape != (len(x),):
        raise ValueError(f"{len(x)} {split} features but labels of shape {labels.shape}")
    kept = labels >= 0
    if not kept.any():
        raise FineSightError(f"kNN needs class labels and no {split} image has one.")
    rows = x if isinstance(x, WideRows) else np.asarray(x)
    return rows[kept], labels[kept]
