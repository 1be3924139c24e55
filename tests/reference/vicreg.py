"""VICReg: invariance, variance and covariance, for the batch as a whole and as what each image adds."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPS = 1e-4


def centered(z: Array) -> Array:
    n, dim = z.shape
    means = [math.fsum(z[:, d]) / n for d in range(dim)]
    return np.array([[z[i, d] - means[d] for d in range(dim)] for i in range(n)])


def covariances(z: Array) -> Array:
    """Unbiased. (N, D) -> (D, D)"""
    n, dim = z.shape
    x = centered(z)
    return np.array(
        [[math.fsum(x[k, i] * x[k, j] for k in range(n)) / (n - 1) for j in range(dim)] for i in range(dim)]
    )


def deviations(z: Array) -> list[float]:
    return [math.sqrt(variance + EPS) for variance in np.diag(covariances(z))]


def invariance(a: Array, b: Array) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a.flat, b.flat, strict=True)) / a.size


def variance(z: Array) -> float:
    """The mean over dimensions of what a deviation lacks to one."""
    return sum(max(0.0, 1 - s) for s in deviations(z)) / z.shape[1]


def covariance(z: Array) -> float:
    c = covariances(z)
    return math.fsum(c[i, j] ** 2 for i, j in np.ndindex(*c.shape) if i != j) / z.shape[1]


def vicreg(a: Array, b: Array, weights: tuple[float, float, float] = (25.0, 25.0, 1.0)) -> float:
    alike, alive, apart = weights
    return (
        alike * invariance(a, b) + alive * (variance(a) / 2 + variance(b) / 2) + apart * (covariance(a) + covariance(b))
    )


def variance_parts(z: Array) -> Array:
    """(N,): a deviation that lacks something is (var + ε) / s, and var a sum over images."""
    n, dim = z.shape
    x, s = centered(z), deviations(z)
    shares = np.zeros(n)
    for k in range(n):
        for d in range(dim):
            if s[d] < 1:
                shares[k] += (1 - (n / (n - 1) * x[k, d] ** 2 + EPS) / s[d]) / dim
    return shares


def covariance_parts(z: Array) -> Array:
    """(N,): cov² is cov times a sum over images."""
    n, dim = z.shape
    x, c = centered(z), covariances(z)
    shares = np.zeros(n)
    for k in range(n):
        for i, j in np.ndindex(dim, dim):
            if i != j:
                shares[k] += n / (n - 1) * c[i, j] * x[k, i] * x[k, j] / dim
    return shares


def parts(a: Array, b: Array, weights: tuple[float, float, float] = (25.0, 25.0, 1.0)) -> Array:
    """(N,): what the losses of ``vicreg`` are the mean of."""
    alike, alive, apart = weights
    shares = alive * (variance_parts(a) + variance_parts(b)) / 2 + apart * (covariance_parts(a) + covariance_parts(b))
    for k in range(len(a)):
        shares[k] += alike * invariance(a[k], b[k])
    return shares
