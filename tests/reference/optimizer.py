"""SGD with momentum, LARS, Adam and AdamW as their papers write them."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def shortened(gradient: Array, length: float) -> Array:
    long = math.hypot(*(float(value) for value in gradient.ravel()))
    return gradient * (length / long) if long > length else gradient


def sgd(x: Array, gradients: list[Array], rates: list[float], momentum: float, decay: float) -> Array:
    velocity = np.zeros_like(x)
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + (gradient + decay * x)
        x = x - rate * velocity
    return x


def lars(
    x: Array, gradients: list[Array], rates: list[float], momentum: float, decay: float, bias_share: float = 1.0
) -> Array:
    """Number by number. Vectors are biases and norms: no adaptation, no decay, a rate of their own."""
    shape, plain = x.shape, x.ndim == 1
    w, velocity = [float(value) for value in x.ravel()], [0.0] * x.size
    for gradient, rate in zip(gradients, rates, strict=True):
        g = [float(value) for value in gradient.ravel()]
        ratio = 1.0
        if not plain:
            g = [slope + decay * value for slope, value in zip(g, w, strict=True)]
            long, steep = math.hypot(*w), math.hypot(*g)
            if long > 0 and steep > 0:
                ratio = 0.001 * long / steep
        for i in range(len(w)):
            velocity[i] = momentum * velocity[i] + ratio * g[i]
            w[i] -= (rate * bias_share if plain else rate) * velocity[i]
    return np.array(w).reshape(shape)


def adam(x: Array, gradients: list[Array], rates: list[float], b1: float = 0.9, b2: float = 0.999) -> Array:
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        mean = b1 * mean + (1 - b1) * gradient
        square = b2 * square + (1 - b2) * gradient**2
        x = x - rate * (mean / (1 - b1**t)) / (np.sqrt(square / (1 - b2**t)) + 1e-8)
    return x


def adamw(x: Array, gradients: list[Array], rates: list[float], decay: float) -> Array:
    """Number by number. The decay is a share of the weight itself, not a part of the gradient."""
    w, mean, square = [float(value) for value in x.ravel()], [0.0] * x.size, [0.0] * x.size
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        for i, g in enumerate(gradient.ravel().tolist()):
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            step = (mean[i] / (1 - 0.9**t)) / (math.sqrt(square[i] / (1 - 0.999**t)) + 1e-8)
            w[i] = w[i] - rate * decay * w[i] - rate * step
    return np.array(w).reshape(x.shape)
