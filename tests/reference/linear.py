"""Softmax regression by momentum SGD with a cosine schedule, one sample at a time in float64."""

import math

import numpy as np
from numpy.typing import NDArray


def sgd(
    x: NDArray[np.float64], y: NDArray[np.int64], classes: int, lr: float, epochs: list[list[list[int]]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weight (C, D) and bias (C,) after the given batches of indices, one list of batches per epoch."""
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    speed_w, speed_b = np.zeros_like(weight), np.zeros_like(bias)
    total = sum(len(batches) for batches in epochs)
    step = 0
    for batches in epochs:
        for batch in batches:
            grad_w, grad_b = np.zeros_like(weight), np.zeros_like(bias)
            for i in batch:
                logits = weight @ x[i] + bias
                p = np.exp(logits - logits.max())
                p /= p.sum()
                p[y[i]] -= 1
                grad_w += np.outer(p, x[i]) / len(batch)
                grad_b += p / len(batch)
            rate = lr * (1 + math.cos(math.pi * step / total)) / 2
            speed_w, speed_b = 0.9 * speed_w + grad_w, 0.9 * speed_b + grad_b
            weight, bias = weight - rate * speed_w, bias - rate * speed_b
            step += 1
    return weight, bias
