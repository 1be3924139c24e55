"""LEWEL's maps and aligned vectors, one cell, one map and one channel at a time."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.infonce import dot

Array = NDArray[np.float64]


def unit(x: Array) -> Array:
    return x / math.sqrt(dot(x, x))


def maps(said: Array, scale: float) -> Array:
    """What the head says of each cell, as one map per dimension. (H, W, D) -> (D, H, W)"""
    h, w, d = said.shape
    result = np.zeros((d, h, w))
    for y, x in np.ndindex(h, w):
        result[:, y, x] = np.exp(unit(said[y, x]) / scale)
    for k in range(d):
        result[k] /= sum(result[k].flat)
    return result


def aligned(phi: Array, weights: Array, heads: int) -> Array:
    """(C, H, W), (D, H, W) -> (D / heads, C): channel c belongs to head c // (C / heads), which has D / heads maps."""
    channels, count = len(phi) // heads, len(weights) // heads
    result = np.zeros((count, len(phi)))
    for m, c in np.ndindex(*result.shape):
        own = weights[(c // channels) * count + m]
        result[m, c] = math.fsum(own[y, x] * phi[c, y, x] for y, x in np.ndindex(*own.shape))
    return result


def vectors(phi: Array, shared: Array, second: Array, heads: int, scale: float = 1.0) -> Array:
    """With a matrix for either head: the image's vector, then the aligned ones. (N, C, H, W) -> (N, 1 + M, D)"""
    result = []
    for image in phi:
        c, h, w = image.shape
        mean = np.array([math.fsum(image[k].flat) / (h * w) for k in range(c)])
        said = np.array([[shared @ image[:, y, x] for x in range(w)] for y in range(h)])
        pooled = aligned(image, maps(said, scale), heads)
        result.append([shared @ mean, *(second @ row for row in pooled)])
    return np.array(result)


def mixed(instance: Array, rest: list[Array], share: float) -> Array:
    """The loss of each image from that of its own vector and those of its aligned ones, (N,) each."""
    return np.array([(1 - share) * own + share * sum(r[i] for r in rest) / len(rest) for i, own in enumerate(instance)])
