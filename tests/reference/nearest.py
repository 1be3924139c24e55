"""Neighbors and varied answers, one comparison after the other."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest(query: Array, vectors: Array, ids: list[int], k: int) -> tuple[list[float], list[int]]:
    """By cosine, then by id."""
    scored = []
    for number, vector in zip(ids, vectors, strict=True):
        lengths = float(query @ query) ** 0.5 * float(vector @ vector) ** 0.5
        scored.append((-float(query @ vector) / lengths, number))
    scored.sort(key=lambda one: (round(one[0], 6), one[1]))
    return [-score for score, _ in scored[:k]], [number for _, number in scored[:k]]


def varied(scores: list[float], vectors: Array, k: int, diversity: float) -> list[int]:
    """Maximal marginal relevance, from its definition."""
    picked: list[int] = []
    while len(picked) < min(k, len(scores)):
        worths = {}
        for i in range(len(scores)):
            if i in picked:
                continue
            alike = max((float(vectors[i] @ vectors[j]) for j in picked), default=0.0)
            worths[i] = (1 - diversity) * scores[i] - diversity * alike
        picked.append(max(worths, key=lambda i: worths[i]))
    return picked


def cover(box: tuple[float, float, float, float], view: tuple[float, float, float, float], cells: int) -> Array:
    """The share of each cell of a view's grid that a box covers; both as shares of the picture."""
    shares = np.zeros((cells, cells))
    for row, column in np.ndindex(cells, cells):
        spans = []
        for place, axis in ((column, 0), (row, 1)):
            start = view[axis] + place * view[axis + 2] / cells
            end = view[axis] + (place + 1) * view[axis + 2] / cells
            low, high = max(start, box[axis]), min(end, box[axis] + box[axis + 2])
            spans.append(max(0.0, high - low) / (end - start))
        shares[row, column] = spans[0] * spans[1]
    return shares
