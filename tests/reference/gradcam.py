"""GradCAM from derivatives measured by nudging every number of φ."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def differences(function: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """Central finite differences of a scalar function, element by element."""
    slope = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        slope[at] = (function(up) - function(down)) / (2 * step)
    return slope


def average(phi: Array) -> Array:
    """(N, C, H, W) -> (N, C)"""
    n, c, h, w = phi.shape
    return np.array(
        [[sum(phi[i, k, y, x] for y in range(h) for x in range(w)) / (h * w) for k in range(c)] for i in range(n)]
    )


def cam(phi: Array, slope: Array) -> Array:
    """Σ_c ∂s/∂φ · φ in each cell, signed. (N, C, H, W) -> (N, H, W)"""
    n, c, h, w = phi.shape
    result = np.zeros((n, h, w))
    for i, y, x in np.ndindex(n, h, w):
        result[i, y, x] = sum(slope[i, k, y, x] * phi[i, k, y, x] for k in range(c))
    return result
