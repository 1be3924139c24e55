"""Bilinear resize with aligned pixel centers, pixel by pixel, and the two localization measures on it."""

import math

import numpy as np
from numpy.typing import NDArray


def upsample(attention: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    rows, columns = attention.shape
    result = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            v = max(0.0, (y + 0.5) * rows / height - 0.5)
            u = max(0.0, (x + 0.5) * columns / width - 0.5)
            top, left = math.floor(v), math.floor(u)
            bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            b, a = v - top, u - left
            result[y, x] = (1 - b) * ((1 - a) * attention[top, left] + a * attention[top, right]) + b * (
                (1 - a) * attention[bottom, left] + a * attention[bottom, right]
            )
    return result


def share_inside(attention: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    heat = upsample(attention, *mask.shape)
    inside = sum(heat[y, x] for y, x in np.ndindex(*mask.shape) if mask[y, x])
    return float(inside / sum(heat[y, x] for y, x in np.ndindex(*mask.shape)))


def points_inside(attention: NDArray[np.float64], mask: NDArray[np.bool_]) -> bool:
    heat = upsample(attention, *mask.shape)
    plateau = [at for at in np.ndindex(*mask.shape) if math.isclose(heat[at], heat.max(), rel_tol=1e-9)]
    return 2 * sum(bool(mask[at]) for at in plateau) > len(plateau)
