"""SGD with momentum and Adam as their papers write them."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sgd(x: Array, gradients: list[Array], rates: list[float], momentum: float, decay: float) -> Array:
    velocity = np.zeros_like(x)
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + (gradient + decay * x)
        x = x - rate * velocity
    return x


def adam(x: Array, gradients: list[Array], rates: list[float], b1: float = 0.9, b2: float = 0.999) -> Array:
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        mean = b1 * mean + (1 - b1) * gradient
        square = b2 * square + (1 - b2) * gradient**2
        x = x - rate * (mean / (1 - b1**t)) / (np.sqrt(square / (1 - b2**t)) + 1e-8)
    return x
