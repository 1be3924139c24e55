"""InfoNCE with a queue, one image and one negative at a time."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dot(a: Array, b: Array) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def info_nce(q: Array, k: Array, queue: Array, temperature: float) -> Array:
    """(N,): −log of the share the positive has of Σ exp(similarity / t) over itself and the queue."""
    losses = []
    for query, key in zip(q, k, strict=True):
        positive = dot(query, key)
        gaps = [0.0] + [(dot(query, negative) - positive) / temperature for negative in queue]
        largest = max(gaps)
        losses.append(largest + math.log(math.fsum(math.exp(gap - largest) for gap in gaps)))
    return np.array(losses)


def head(u: Array, layers: list[tuple[Array, Array | None]]) -> Array:
    """Linear layers (weight, bias) with ReLU between them, then unit length. (N, C) -> (N, D)"""
    rows = []
    for x in u:
        for depth, (weight, bias) in enumerate(layers):
            x = weight @ x + (0 if bias is None else bias)
            if depth + 1 < len(layers):
                x = np.array([max(0.0, value) for value in x])
        rows.append(x / math.sqrt(dot(x, x)))
    return np.stack(rows)
