"""Batch norm over the joined batch of all processes, on any device (torch's SyncBatchNorm needs a GPU)."""

from __future__ import annotations

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


def join_norms(network: nn.Module) -> None:
    """Make every batch norm in ``network`` see the joined batch; names and weights stay."""
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, JointNorm):
            module.__class__ = type(f"Joint{type(module).__name__}", (JointNorm, type(module)), {})
