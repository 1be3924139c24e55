"""Poolings of maps with both signs, and the attention of a class token, cell by cell."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def limit(values: list[float]) -> float:
    """The median plus three deviations; of two medians the lower, and 1.4826 median distances are a deviation."""
    middle = sorted(values)[(len(values) - 1) // 2]
    distance = sorted(abs(value - middle) for value in values)[(len(values) - 1) // 2]
    return middle + 3 * 1.4826 * distance


def shortened(phi: Array) -> Array:
    """Tokens longer than the limit of their image get that length. (N, C, H, W), the same"""
    result = np.zeros_like(phi)
    for n, image in enumerate(phi):
        lengths = {at: math.sqrt(sum(v * v for v in image[:, *at])) for at in np.ndindex(*image.shape[1:])}
        most = limit(list(lengths.values()))
        for at, length in lengths.items():
            result[n, :, *at] = image[:, *at] * (most / length if length > most else 1)
    return result


def energy(phi: Array) -> Array:
    """The sum of what is positive in each token, none above the limit of its image. -> (N, H, W)"""
    n, c, h, w = phi.shape
    result, short = np.zeros((n, h, w)), shortened(phi)
    for i in range(n):
        for y, x in np.ndindex(h, w):
            result[i, y, x] = sum(max(short[i, k, y, x], 0) for k in range(c))
        most = limit(result[i].ravel().tolist())
        for y, x in np.ndindex(h, w):
            result[i, y, x] = min(result[i, y, x], most)
    return result


def pooled(phi: Array, weights: Array, power: float = 3.0) -> Array:
    """Power means of what is above the lowest value of the channel, which is added again. -> (N, C)"""
    n, c, h, w = phi.shape
    result = np.zeros((n, c))
    for i, k in np.ndindex(n, c):
        lowest = min(phi[i, k].flat)
        total = sum(weights[i].flat)
        summed = sum(weights[i, y, x] * max(phi[i, k, y, x] - lowest, 1e-6) ** power for y, x in np.ndindex(h, w))
        result[i, k] = (summed / total) ** (1 / power) + lowest
    return result


def class_attention(tokens: Array, weight: Array, bias: Array, heads: int) -> Array:
    """Mean over the heads of softmax(q₀ kᵀ / √d), of tokens (T, C) as they enter the attention. -> (T,)"""
    count, channels = tokens.shape
    size = channels // heads
    result = np.zeros(count)
    for head in range(heads):
        rows = range(head * size, (head + 1) * size)
        query = [float(weight[r] @ tokens[0] + bias[r]) for r in rows]
        scores = []
        for token in tokens:
            key = [float(weight[channels + r] @ token + bias[channels + r]) for r in rows]
            scores.append(sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(size))
        powers = [math.exp(score - max(scores)) for score in scores]
        result += np.array(powers) / sum(powers) / heads
    return result
