"""The momentum twin: a slowly following copy of a network."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def momentum_twin(module: Network) -> Network:
    """A copy that never gets a gradient."""
    twin = copy.deepcopy(module)
    twin.requires_grad_(False)
    return twin


@torch.no_grad()
def follow(twin: nn.Module, online: nn.Module, momentum: float) -> None:
    """θ_twin ← m θ_twin + (1 − m) θ_online, parameters only: the twin's batch-norm buffers are its own."""
    behind: list[torch.Tensor] = list(twin.parameters())
    if behind:
        torch._foreach_lerp_(behind, [p.detach() for p in online.parameters()], 1.0 - momentum)


def rising_momentum(start: float, progress: float) -> float:
    """From ``start`` to 1 along half a cosine, as BYOL and DINO have it."""
    return 1 - (1 - start) * (math.cos(math.pi * progress) + 1) / 2
