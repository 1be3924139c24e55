"""Softmax regression by momentum SGD with a cosine schedule in float64; a probe that tries one setting at a time."""

import math
from collections.abc import Callable

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


Batches = Callable[[int, int], list[list[list[int]]]]  # images and epochs -> epochs of batches


def probe(
    x: NDArray[np.float64],
    y: NDArray[np.int64],
    test: NDArray[np.float64],
    folds: list[NDArray[np.int64]],
    lrs: tuple[float, ...],
    epochs: tuple[int, ...],
    batches: Batches,
) -> tuple[tuple[float, int], dict[tuple[float, int], float], NDArray[np.int64]]:
    """Setting, validation accuracy of every setting, and the classes of ``test``; all settings are tried to the end."""
    classes = int(y.max()) + 1
    accuracy: dict[tuple[float, int], float] = {}
    for lr in lrs:
        for length in epochs:
            hits = []
            for fold in folds:
                kept = np.setdiff1d(np.arange(len(y)), fold)
                weight, bias = sgd_by_batch(x[kept], y[kept], classes, lr, batches(len(kept), length))
                hits += [int(np.argmax(weight @ x[i] + bias)) == y[i] for i in fold]
            accuracy[lr, length] = 100 * sum(hits) / len(hits)
    best = max(accuracy, key=lambda setting: accuracy[setting])
    weight, bias = sgd_by_batch(x, y, classes, best[0], batches(len(y), best[1]))
    return best, accuracy, np.argmax(test @ weight.T + bias, axis=1)


def sgd_by_batch(
    x: NDArray[np.float64], y: NDArray[np.int64], classes: int, lr: float, epochs: list[list[list[int]]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``sgd`` with the samples of a batch at once."""
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    speed_w, speed_b = np.zeros_like(weight), np.zeros_like(bias)
    total, step = sum(len(batches) for batches in epochs), 0
    for batches in epochs:
        for batch in batches:
            logits = x[batch] @ weight.T + bias
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p = p / p.sum(axis=1, keepdims=True) - np.eye(classes)[y[batch]]
            rate = lr * (1 + math.cos(math.pi * step / total)) / 2
            speed_w, speed_b = 0.9 * speed_w + p.T @ x[batch] / len(batch), 0.9 * speed_b + p.mean(axis=0)
            weight, bias = weight - rate * speed_w, bias - rate * speed_b
            step += 1
    return weight, bias
