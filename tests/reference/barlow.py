"""Barlow Twins: standardize over the batch, correlate every dimension with every other, ask for the identity."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def standardized(z: Array, eps: float = 1e-5) -> Array:
    """Each dimension less its mean, over its deviation (biased, with batch norm's ε). (N, D) -> (N, D)"""
    n, dim = z.shape
    result = np.zeros_like(z)
    for d in range(dim):
        mean = math.fsum(z[:, d]) / n
        variance = math.fsum((value - mean) ** 2 for value in z[:, d]) / n
        for i in range(n):
            result[i, d] = (z[i, d] - mean) / math.sqrt(variance + eps)
    return result


def correlation(a: Array, b: Array) -> Array:
    """C of standardized outputs. (N, D), (N, D) -> (D, D)"""
    n, dim = a.shape
    c = np.zeros((dim, dim))
    for i, j in np.ndindex(dim, dim):
        c[i, j] = math.fsum(a[k, i] * b[k, j] for k in range(n)) / n
    return c


def barlow(a: Array, b: Array, off_diagonal: float) -> float:
    """Σ (1 − C_ii)² + λ Σ_{i≠j} C_ij²"""
    c = correlation(a, b)
    total = 0.0
    for i, j in np.ndindex(*c.shape):
        total += (1 - c[i, i]) ** 2 if i == j else off_diagonal * c[i, j] ** 2
    return total


def parts(a: Array, b: Array, off_diagonal: float) -> Array:
    """(N,): (1 − C_ii)² is 1 − 2 C_ii + C_ii², and one factor C_ij is a mean over images: to each what it adds."""
    n, dim = a.shape
    c = correlation(a, b)
    shares = []
    for k in range(n):
        share = 0.0
        for i, j in np.ndindex(dim, dim):
            own = a[k, i] * b[k, j]
            share += 1 - 2 * own + c[i, i] * own if i == j else off_diagonal * c[i, j] * own
        shares.append(share)
    return np.array(shares)
