"""The released code's linear probe in NumPy, float64: momentum as SGD usually has it, the rate by epoch."""

import numpy as np
from numpy.typing import NDArray


def steps(
    weight: NDArray[np.float64], batches: list[tuple[NDArray[np.float64], NDArray[np.int64], float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weight (C, D) and bias (C,) after batches of (features, classes, rate), from ``weight`` and a zero bias."""
    weight, bias = weight.copy(), np.zeros(len(weight))
    speed_w, speed_b = np.zeros_like(weight), np.zeros_like(bias)
    for x, y, rate in batches:
        logits = x @ weight.T + bias
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(y)), y] -= 1
        speed_w = 0.9 * speed_w + share.T @ x / len(y)
        speed_b = 0.9 * speed_b + share.mean(axis=0)
        weight, bias = weight - rate * speed_w, bias - rate * speed_b
    return weight, bias
