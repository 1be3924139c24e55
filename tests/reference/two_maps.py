"""A mask enlarged and two maps pooled under it, number by number."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.pooling import pooled

Array = NDArray[np.float64]


def enlarged(mask: Array, height: int, width: int) -> Array:
    """Each new cell by the distances of its center to those of the four nearest old cells. (H, W) -> (height, width)"""
    rows, columns = mask.shape
    result = np.zeros((height, width))
    for y, x in np.ndindex(height, width):
        down, right = (y + 0.5) * rows / height - 0.5, (x + 0.5) * columns / width - 0.5
        down, right = min(max(down, 0), rows - 1), min(max(right, 0), columns - 1)  # beyond the outermost centers
        for i, j in np.ndindex(rows, columns):
            result[y, x] += mask[i, j] * max(0, 1 - abs(down - i)) * max(0, 1 - abs(right - j))
    return result


def two_maps(phi: Array, earlier: Array, mask: Array, weight: float) -> Array:
    """GeM of both under one mask, side by side. (N, C, H, W), (N, D, H', W'), (N, H, W) -> (N, C + D)"""
    mask = np.stack([one if one.sum() > 0 else np.ones_like(one) for one in mask])
    larger = np.stack([enlarged(one, *earlier.shape[2:]) for one in mask])
    halves = zip(pooled(phi, mask, 3.0), pooled(earlier, larger, 3.0), strict=True)
    rows = [[*(last / length(last)), *(weight * before / length(before))] for last, before in halves]
    return np.array([np.array(row) / length(row) for row in rows])


def length(vector: Array | list[float]) -> float:
    return math.sqrt(sum(value * value for value in vector))
