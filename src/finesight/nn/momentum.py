"""The momentum twin: a slowly following copy of a network."""

from __future__ import annotations

import copy

import torch
from torch import nn


def momentum_twin(module: nn.Module) -> nn.Module:
    """A copy that never gets a gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(twin: nn.Module, online: nn.Module, momentum: float) -> None:
    """θ_twin ← m θ_twin + (1 − m) θ_online, parameters only: the twin's batch-norm buffers are its own."""
    torch._foreach_lerp_(list(twin.parameters()), [p.detach() for p in online.parameters()], 1.0 - momentum)
