"""The rationale of one image after the other: target, branch, and Kullback-Leibler divergence."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.pooling import mask

Array = NDArray[np.float64]


def target(signed: Array, rectify: str, scale: str) -> Array:
    """(N, H, W) -> (N, H, W)"""
    images = []
    for image in signed:
        g = np.array([[max(0.0, v) if rectify == "relu" else abs(v) for v in row] for row in image])
        cells = g.size
        mean = sum(g.flat) / cells
        deviation = math.sqrt(sum((v - mean) ** 2 for v in g.flat) / cells)
        divisor = {"batch_mean": len(signed), "image": 1, "cells": 1 / cells, "max": g.max(), "std": deviation}[scale]
        images.append(g / divisor if g.any() else g)
    return np.stack(images)


def branch(phi: Array, filters: Array, *, unit: bool, norm: dict[str, Array] | None = None) -> Array:
    """max_k w_kᵀφ in each cell; ``norm`` holds mean, var, weight and bias of a batch norm before ReLU and max."""
    n, _, h, w = phi.shape
    result = np.zeros((n, h, w))
    for i, y, x in np.ndindex(n, h, w):
        cell = phi[i, :, y, x]
        if unit:
            cell = cell / max(1e-12, math.sqrt(sum(v * v for v in cell)))
        answers = [sum(a * b for a, b in zip(f, cell, strict=True)) for f in filters]
        if norm is not None:
            answers = [
                max(0.0, (a - norm["mean"][k]) / math.sqrt(norm["var"][k] + 1e-5) * norm["weight"][k] + norm["bias"][k])
                for k, a in enumerate(answers)
            ]
        result[i, y, x] = max(answers)
    return result


def two_layers(phi: Array, filters: Array, mix: Array, bias: float, *, unit: bool) -> Array:
    """Hidden units max(0, w_kᵀφ) of each cell, weighed and summed."""
    n, _, h, w = phi.shape
    result = np.zeros((n, h, w))
    for i, y, x in np.ndindex(n, h, w):
        cell = phi[i, :, y, x]
        if unit:
            cell = cell / max(1e-12, math.sqrt(sum(v * v for v in cell)))
        hidden = [max(0.0, sum(a * b for a, b in zip(f, cell, strict=True))) for f in filters]
        result[i, y, x] = bias + sum(a * b for a, b in zip(mix, hidden, strict=True))
    return result


def responses_statistics(phi: Array, filters: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance of each filter's answers over all images and cells."""
    n, _, h, w = phi.shape
    answers = np.array([filters @ phi[i, :, y, x] for i, y, x in np.ndindex(n, h, w)])  # (N*H*W, K)
    return answers.mean(0), ((answers - answers.mean(0)) ** 2).mean(0)


def softmax(values: Array, tau: float) -> Array:
    powers = [math.exp((float(v) - float(values.max())) / tau) for v in values]
    return np.array(powers) / math.fsum(powers)


def divergence(p: Array, q: Array) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def kl(g: Array, a: Array, *, tau: float, over: str, direction: str, reduction: str, attention_scale: str) -> float:
    """L_KL of scaled targets and raw attention, both (N, H, W)."""
    if attention_scale != "raw":
        a = mask(a, over=attention_scale, divisor="shifted_max")
    total = 0.0
    for target_map, attention_map in zip(g, a, strict=True):
        pairs = [(target_map.ravel(), attention_map.ravel())]
        if over == "rows":
            pairs = list(zip(target_map, attention_map, strict=True))
        for x, y in pairs:
            p, q = softmax(x, tau), softmax(y, tau)
            total += divergence(p, q) if direction == "target_attention" else divergence(q, p)
    return total / {"mean": len(g), "sum": 1, "elements": g.size}[reduction]
