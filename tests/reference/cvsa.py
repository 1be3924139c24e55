"""The alignment of one image: how far what its cells say of the key is from where the object is."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.infonce import dot

Array = NDArray[np.float64]


def alignment(cells: Array, key: Array, share: Array, temperature: float) -> Array:
    """(N, P, D), (N, D), (N, P) -> (N,): Σ o log(o / s), o the object's share, s the softmax of similarities."""
    losses = []
    for vectors, k, object_share in zip(cells, key, share, strict=True):
        total = math.fsum(object_share)
        if total == 0:
            losses.append(0.0)
            continue
        logits = [dot(vector, k) / temperature for vector in vectors]
        largest = max(logits)
        normalizer = largest + math.log(math.fsum(math.exp(logit - largest) for logit in logits))
        loss = 0.0
        for logit, part in zip(logits, object_share, strict=True):
            if part > 0:
                loss += part / total * (math.log(part / total) - (logit - normalizer))
        losses.append(loss)
    return np.array(losses)


def cell_means(mask: Array, rows: int, columns: int) -> Array:
    """The mean of each cell's pixels. (N, R, R) -> (N, rows * columns); R a multiple of both."""
    n, height, width = mask.shape
    tall, wide = height // rows, width // columns
    result = np.zeros((n, rows * columns))
    for i, row, column in np.ndindex(n, rows, columns):
        pixels = mask[i, row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
        result[i, row * columns + column] = sum(pixels.flat) / pixels.size
    return result
