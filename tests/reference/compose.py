"""Cut-out, fill and paste of one image, pixel by pixel."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.localization import upsample

Array = NDArray[np.float64]


def cropped_map(
    full: NDArray[np.uint8], size: tuple[int, int], crop: tuple[int, int, int, int], flip: bool, side: int
) -> Array:
    """Where an output pixel's center lies in the image, where that is on the map, and the four cells around."""
    top, left, height, width = crop
    rows, columns = full.shape
    result = np.zeros((side, side))
    for i in range(side):
        for j in range(side):
            y = top + (i + 0.5) * height / side
            x = left + ((side - 1 - j if flip else j) + 0.5) * width / side
            v = min(max(y / size[0] * rows - 0.5, 0.0), rows - 1.0)
            u = min(max(x / size[1] * columns - 0.5, 0.0), columns - 1.0)
            total = 0.0
            for r in range(rows):
                for c in range(columns):
                    total += max(0.0, 1 - abs(v - r)) * max(0.0, 1 - abs(u - c)) * float(full[r, c])
            result[i, j] = total / 255
    return result


def pooled(plane: Array, cells: int) -> Array:
    """The mean of each cell's pixels; a pixel that two cells share counts in both."""
    side = len(plane)
    cuts = [(i * side // cells, -(-(i + 1) * side // cells)) for i in range(cells)]
    return np.array([[plane[a:b, c:d].mean() for c, d in cuts] for a, b in cuts])


def halved(plane: Array) -> Array:
    n = len(plane) // 2
    return np.array([[plane[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean() for j in range(n)] for i in range(n)])


def background(image: Array, alpha: Array, *, grid: int = 16, trust: float = 0.05, least: float = 1e-4) -> Array:
    """(3, R, R), (R, R) -> (3, R, R). A cell's background and, weighted by ``trust``, what the coarser cells say."""
    result = np.zeros_like(image)
    for channel, plane in enumerate(image):
        levels = [(pooled((1 - alpha) * plane, grid), pooled(1 - alpha, grid))]
        mean = pooled(plane, grid).mean()
        while len(levels[-1][0]) > 1:
            levels.append((halved(levels[-1][0]), halved(levels[-1][1])))
        sums, weights = levels.pop()
        fill = (sums + least * mean) / (weights + least)
        for sums, weights in reversed(levels):
            fill = (sums + trust * upsample(fill, len(sums), len(sums))) / (weights + trust)
        fill = upsample(fill, *plane.shape)
        for at in np.ndindex(*plane.shape):
            result[channel][at] = (1 - alpha[at]) * plane[at] + alpha[at] * fill[at]
    return result


def cubic(t: float, a: float = -0.75) -> float:
    """Keys' kernel."""
    t = abs(t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def bicubic(plane: Array, side: int) -> Array:
    """Edges repeat."""
    n = len(plane)
    weights = np.zeros((side, n))
    for i in range(side):
        v = (i + 0.5) * n / side - 0.5
        for r in range(math.floor(v) - 1, math.floor(v) + 3):
            weights[i, min(max(r, 0), n - 1)] += cubic(v - r)
    result = np.zeros((side, side))
    for i, j in np.ndindex(side, side):
        result[i, j] = sum(weights[i, r] * weights[j, c] * plane[r, c] for r, c in np.ndindex(n, n))
    return result


def texture(noise: Array, side: int) -> Array:
    """(3, 8, 8) -> (3, R, R): octaves of 8, 16 and 32 cells weighted 1, 1/2, 1/4 choose between two colors."""
    octaves = [bicubic(np.tile(noise[k], (2**k, 2**k)), side) for k in range(3)]
    field = 0.5 + sum((octave - 0.5) / 2**k for k, octave in enumerate(octaves))
    result = np.zeros((3, side, side))
    for channel, i, j in np.ndindex(3, side, side):
        share = min(max(field[i, j], 0.0), 1.0)
        result[channel, i, j] = (1 - share) * noise[channel, 0, 0] + share * noise[channel, -1, -1]
    return result


def pasted(image: Array, alpha: Array, behind: Array) -> Array:
    result = np.zeros_like(image)
    for at in np.ndindex(*image.shape):
        a = alpha[at[1:]]
        result[at] = a * image[at] + (1 - a) * behind[at]
    return result
