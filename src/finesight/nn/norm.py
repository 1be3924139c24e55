"""Batch norms over the joined batch of all processes, and ones whose statistics can be held while differentiating.

Torch's SyncBatchNorm needs a GPU; these work on any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from finesight.nn.distributed import sum_over_ranks, world


class JointNorm:
    """A mix-in for batch norms: in training and in several processes, statistics are those of all ranks."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training or world()[1] == 1:
            normalized: Tensor = super().forward(x)  # type: ignore[misc]
            return normalized
        normalized = _normalize(self, x)
        return self.act(self.drop(normalized)) if hasattr(self, "act") else normalized  # timm's end in an activation


def _normalize(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    over, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    count = wide.numel() // wide.shape[1] * world()[1]
    mean = sum_over_ranks(wide.sum(over)) / count
    centered = wide - mean.view(shape)
    var = sum_over_ranks(centered.square().sum(over)) / count
    if norm.track_running_stats:
        norm.num_batches_tracked.add_(1)
        share = norm.momentum if norm.momentum is not None else 1 / int(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.detach().to(norm.running_mean), share)
        norm.running_var.lerp_(var.detach().to(norm.running_var) * (count / (count - 1)), share)
    y = centered * torch.rsqrt(var + norm.eps).view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(x.dtype)


def uses_batch_statistics(*networks: nn.Module) -> bool:
    """Return whether batch norms of any of the networks normalize by the batch, as they do in training."""
    modules = (module for network in networks for module in network.modules())
    return any(isinstance(module, _BatchNorm) and module.training for module in modules)


def join_norms(network: nn.Module) -> None:
    """Make every batch norm in ``network`` see the joined batch; names and weights stay."""
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, JointNorm):
            module.__class__ = type(f"Joint{type(module).__name__}", (JointNorm, type(module)), {})


class HeldNorm:
    """A mix-in for batch norms: within ``held_statistics`` gradients take mean and variance of the batch as constants.

    What it computes, what it keeps and the gradients outside of that are those of the norm.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        normalized: Tensor = super().forward(x)  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):
            return normalized
        with torch.no_grad():
            over, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
            count = x.numel() // x.shape[1] * (world()[1] if isinstance(self, JointNorm) else 1)
            total = sum_over_ranks if isinstance(self, JointNorm) else lambda part: part
            mean = total(x.sum(over)) / count
            scale = torch.rsqrt(total((x - mean.view(shape)).square().sum(over)) / count + self.eps)
        held = (x - mean.view(shape)) * scale.view(shape)
        if self.affine:
            held = held * self.weight.view(shape) + self.bias.view(shape)
        chosen: Tensor = _Choose.apply(normalized, held)
        return chosen


class _Choose(torch.autograd.Function):
    """The first of two equal tensors; gradients go to the second one within ``held_statistics``."""

    held = False

    @staticmethod
    def forward(ctx: Any, plain: Tensor, held: Tensor) -> Tensor:
        return plain.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> tuple[Tensor | None, Tensor | None]:
        return (None, slopes[0]) if _Choose.held else (slopes[0], None)


@contextmanager
def held_statistics(wanted: bool = True) -> Iterator[None]:
    """Differentiate through norms of ``hold_norms`` as if the statistics of the batch were constants."""
    before, _Choose.held = _Choose.held, wanted
    try:
        yield
    finally:
        _Choose.held = before


def hold_norms(network: nn.Module, without: Iterable[nn.Module] = ()) -> None:
    """Let the statistics of every batch norm in ``network`` be held, but for those in ``without``; names stay."""
    left_out = {id(module) for part in without for module in part.modules()}
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, HeldNorm) and id(module) not in left_out:
            module.__class__ = type(f"Held{type(module).__name__}", (HeldNorm, type(module)), {})
