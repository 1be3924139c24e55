"""A cosine score taken apart cell by cell and projection by projection, in plain loops."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def feature(phi: Array, weights: Array, power: float) -> Array:
    """(C, H, W), (H, W) -> (C,)"""
    c, h, w = phi.shape
    total = sum(weights[y, x] for y, x in np.ndindex(h, w))
    cells = list(np.ndindex(h, w))
    means = [sum(weights[y, x] * phi[i, y, x] ** power for y, x in cells) / total for i in range(c)]
    return np.array([mean ** (1 / power) for mean in means])


def cosine(a: Array, b: Array) -> float:
    dot = sum(x * y for x, y in zip(a.flat, b.flat, strict=True))
    return dot / math.sqrt(sum(x * x for x in a.flat)) / math.sqrt(sum(y * y for y in b.flat))


def cell_map(phi: Array, weights: Array, power: float, other: Array) -> Array:
    """What every cell adds to the score with another image's feature: its share of each channel, times the other's."""
    c, h, w = phi.shape
    own = feature(phi, weights, power)
    total = sum(weights[y, x] for y, x in np.ndindex(h, w))
    lengths = math.sqrt(sum(v * v for v in own)) * math.sqrt(sum(v * v for v in other))
    result = np.zeros((h, w))
    for y, x in np.ndindex(h, w):
        for i in range(c):
            share = weights[y, x] * phi[i, y, x] ** power / total / own[i] ** power  # of this channel, sums to one
            result[y, x] += share * own[i] * other[i] / lengths
    return result


def coarse(fine: Array, rows: int, columns: int) -> Array:
    """Cut every cell of a map into small squares, each of which goes to the coarse cell it lies in."""
    height, width = fine.shape
    result = np.zeros((rows, columns))
    for y, x in np.ndindex(height * rows, width * columns):  # as many squares as make both grids whole
        result[y // height, x // width] += fine[y // rows, x // columns] / (rows * columns)
    return result


def part(phi: Array, weights: Array, power: float, marked: NDArray[np.bool_]) -> Array:
    """What the marked cells add to the feature, and it over the feature's length. -> (C,)"""
    own, total = feature(phi, weights, power), weights.sum()
    result = np.zeros(len(phi))
    for i in range(len(phi)):
        for y, x in np.ndindex(*weights.shape):
            if marked[y, x]:
                result[i] += weights[y, x] * phi[i, y, x] ** power / total / own[i] ** (power - 1)
    return result / math.sqrt(sum(v * v for v in own))


def bilinear_share(k: int, phi: Array, responses: Array, other_phi: Array, other_responses: Array) -> float:
    """Of projection k in the score of bilinear features."""

    def blocks(p: Array, a: Array) -> Array:
        out = np.zeros((len(a), len(p)))
        for n, i in np.ndindex(*out.shape):
            out[n, i] = sum(a[n, y, x] * p[i, y, x] for y, x in np.ndindex(*p.shape[1:]))
        return out

    one, two = blocks(phi, responses), blocks(other_phi, other_responses)
    lengths = math.sqrt((one * one).sum()) * math.sqrt((two * two).sum())
    return sum(a * b for a, b in zip(one[k], two[k], strict=True)) / lengths
