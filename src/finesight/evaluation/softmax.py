"""Softmax regression by SGD, for several learning rates at once, on features or on their inner products.

All rates see the same batches, so that a step of all of them is two matrix products. The gradient of the cross-entropy
is written out. The problem is convex, so the start (the paper draws N(0, 0.01)) is zero.

The weights that SGD learns from zero are a sum of multiples of the rows, ``shares`` of them. Steps can therefore be
taken on the shares, with the inner products of the rows in place of the rows: the same steps up to rounding. A step
costs n multiplications for each image and class instead of 2 D, so that it pays for few images or many dimensions.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from threading import Event

import torch
from torch import Tensor

from finesight.features.wide import WideRows

BATCH = 256
MOMENTUM = 0.9
BLOCK_BYTES = 256 * 2**20  # of the features that are held in float32 or float64 at a time

Rows = Tensor | WideRows


def fit(
    x: Rows,
    y: Tensor,
    classes: int,
    lrs: Sequence[float],
    epochs: int,
    seed: int,
    batches: int | None = None,
    stopped: Event | None = None,
) -> Tensor:
    """Train one softmax regression per learning rate; return weights (G, C, D + 1), the last column being the bias.

    SGD with momentum, no weight decay, cosine schedule. An epoch is ``batches`` steps of equal size, by default as many
    as batches of 256 would be. When ``stopped`` is set, ``CancelledError`` is raised.
    """
    weight = dense(x[:0]).new_zeros(x.shape[1], len(lrs) * classes)
    bias, rates = weight.new_zeros(weight.shape[1]), weight.new_tensor(lrs)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    for batch, decay in _steps(len(x), epochs, seed, batches or batch_count(len(x)), stopped):
        rows = dense(x[batch])
        error = _error(torch.addmm(bias, rows, weight), y[batch], rates)
        speed.addmm_(rows.T, error, beta=MOMENTUM)
        bias_speed.mul_(MOMENTUM).add_(error.sum(0))
        weight.sub_(speed, alpha=decay)
        bias.sub_(bias_speed, alpha=decay)
    return torch.cat([weight, bias[None]]).T.reshape(len(lrs), classes, -1)


def fit_products(
    products: Tensor,
    y: Tensor,
    classes: int,
    lrs: Sequence[float],
    epochs: int,
    seed: int,
    batches: int | None = None,
    stopped: Event | None = None,
) -> Tensor:
    """Do as ``fit``, given the inner products of the rows (n, n) by ``inner_products``; return shares (n, G * C)."""
    shares, rates = products.new_zeros(len(y), len(lrs) * classes), products.new_tensor(lrs)
    speed = torch.zeros_like(shares)
    for batch, decay in _steps(len(y), epochs, seed, batches or batch_count(len(y)), stopped):
        error = _error(products[batch] @ shares, y[batch], rates)
        speed.mul_(MOMENTUM).index_add_(0, batch, error)
        shares.sub_(speed, alpha=decay)
    return shares


def _error(logits: Tensor, y: Tensor, rates: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy by the logits, each times its learning rate. (B, G * C)"""
    error = logits.view(len(y), len(rates), -1).softmax(dim=2)
    error.scatter_add_(2, y[:, None, None].expand(-1, len(rates), 1), error.new_full((len(y), len(rates), 1), -1))
    return error.mul_(rates[:, None] / len(y)).flatten(1)


def _steps(images: int, epochs: int, seed: int, batches: int, stopped: Event | None) -> Iterator[tuple[Tensor, float]]:
    """Yield batches of a fresh order each epoch, with the cosine factor of the learning rate.

    Batches are of equal size: at the high rates that suit unit features, a short last batch could throw the fit off.
    """
    generator = torch.Generator().manual_seed(seed)
    total = epochs * batches
    step = 0
    for _ in range(epochs):
        for batch in torch.tensor_split(torch.randperm(images, generator=generator), batches):
            if stopped is not None and stopped.is_set():
                raise CancelledError
            yield batch, 0.5 * (1 + math.cos(math.pi * step / total))
            step += 1


def batch_count(images: int) -> int:
    """Return into how many batches an epoch is divided."""
    return math.ceil(images / BATCH)


def predict(weight: Tensor, x: Rows) -> Tensor:
    """Return the logits (G, N, C) of the probes that ``fit`` gave."""
    flat, bias = weight[..., :-1].flatten(0, 1), weight[..., -1].flatten()
    logits = weight.new_empty(len(x), len(flat))
    for start in range(0, len(x), BATCH):
        logits[start : start + BATCH] = torch.addmm(bias, dense(x[start : start + BATCH]), flat.T)
    return by_rate(logits, len(weight))


def by_rate(logits: Tensor, rates: int) -> Tensor:
    """Turn logits (N, G * C) into (G, N, C)."""
    return logits.view(len(logits), rates, -1).transpose(0, 1)


def dense(x: Rows) -> Tensor:
    """Return the numbers of the rows."""
    return x.tensor() if isinstance(x, WideRows) else x


# --- other coordinates ------------------------------------------------------------------------------------------------


def inner_products(x: Rows, block_bytes: int | None = None) -> Tensor:
    """Return the inner products of the rows (n, n), each with a one at its end for the bias."""
    total = dense(x[:0]).new_ones(len(x), len(x))
    for _, block in _column_blocks(x, block_bytes):
        for start in range(0, len(x), BATCH):
            total[start : start + BATCH].addmm_(block[start : start + BATCH], block.T)
    return total


def weights_of(shares: Tensor, x: Rows, classes: int, block_bytes: int | None = None) -> Tensor:
    """Return the weights (G, C, D + 1) that are these shares (n, G * C) of the rows."""
    weight = shares.new_empty(shares.shape[1], x.shape[1] + 1)
    for columns, block in _column_blocks(x, block_bytes):
        weight[:, columns] = shares.T @ block
    weight[:, -1] = shares.sum(0)
    return weight.view(-1, classes, weight.shape[1])


def leading_directions(x: Tensor, count: int) -> Tensor:
    """Return the orthonormal directions (D, count) that hold most of the rows' squared length."""
    vectors: Tensor = torch.linalg.eigh(x.T @ x)[1]
    return vectors[:, -count:].flip(1)


def in_leading_directions(x: Tensor, count: int) -> Tensor:
    """Return the rows in so many leading directions, the first of which hold most. (n, D) -> (n, count)"""
    return x @ leading_directions(x, count)


def _column_blocks(x: Rows, block_bytes: int | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield (n, D) some columns at a time."""
    step = max(1, (block_bytes or BLOCK_BYTES) // (4 * max(1, len(x))))
    for start in range(0, x.shape[1], step):
        columns = slice(start, min(start + step, x.shape[1]))
        yield columns, dense(x[:, columns])
