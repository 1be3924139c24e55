"""Predictions against the other view's targets, by the cosine of each pair: BYOL, and SimSiam on another scale."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.infonce import dot

Array = NDArray[np.float64]


def cosine(a: Array, b: Array) -> float:
    return dot(a, b) / (math.sqrt(dot(a, a)) * math.sqrt(dot(b, b)))


def byol(predictions: tuple[Array, Array], targets: tuple[Array, Array]) -> Array:
    """(N,): 2 − 2 cos for the first view's prediction of the second's target, and the other way round."""
    losses = []
    for p1, p2, t1, t2 in zip(*predictions, *targets, strict=True):
        losses.append((2 - 2 * cosine(p1, t2)) + (2 - 2 * cosine(p2, t1)))
    return np.array(losses)


def simsiam(predictions: tuple[Array, Array], targets: tuple[Array, Array]) -> Array:
    """(N,): −cos, half of it for either direction."""
    losses = []
    for p1, p2, t1, t2 in zip(*predictions, *targets, strict=True):
        losses.append(-0.5 * cosine(p1, t2) - 0.5 * cosine(p2, t1))
    return np.array(losses)
