"""Mask and pooling, cell by cell."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mask(attention: Array, *, over: str, divisor: str) -> Array:
    """(A − min A) / (1e-7 + max), the range over each image or over the batch."""
    result = np.zeros_like(attention)
    for i, image in enumerate(attention):
        known = attention if over == "batch" else image
        low, high = min(known.flat), max(known.flat)
        largest = high - low if divisor == "shifted_max" else high
        for y, x in np.ndindex(*image.shape):
            result[i, y, x] = (image[y, x] - low) / (1e-7 + largest)
    return result


def pooled(phi: Array, weights: Array, power: float = 1.0) -> Array:
    """Weighted power mean over the cells of each image. (N, C, H, W), (N, H, W) -> (N, C)"""
    n, c, h, w = phi.shape
    result = np.zeros((n, c))
    for i, k in np.ndindex(n, c):
        total = sum(weights[i, y, x] for y, x in np.ndindex(h, w))
        summed = sum(weights[i, y, x] * phi[i, k, y, x] ** power for y, x in np.ndindex(h, w))
        result[i, k] = (summed / total) ** (1 / power)
    return result


def bilinear(phi: Array, responses: Array) -> Array:
    """Each map weighs φ on its own; what they give is put side by side. (N, C, H, W), (N, K, H, W) -> (N, K*C)"""
    n, c, h, w = phi.shape
    maps = responses.shape[1]
    result = np.zeros((n, maps * c))
    for i, k, channel in np.ndindex(n, maps, c):
        total = sum(responses[i, k, y, x] * phi[i, channel, y, x] for y, x in np.ndindex(h, w))
        result[i, k * c + channel] = total / (h * w)
    return result
