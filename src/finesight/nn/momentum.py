"""Momentum copies: the exponential moving average of a network's weights."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def momentum_copy(module: Network) -> Network:
    """Return a copy that never gets a gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(average: nn.Module, online: nn.Module, momentum: float) -> None:
    """Set θ_average ← m θ_average + (1 − m) θ_online, parameters only: batch-norm buffers stay as they are.

    Parameters that are not trained are left out: their average is what they were when the copy was made.
    """
    pairs = [(a, p.detach()) for a, p in zip(average.parameters(), online.parameters(), strict=True) if p.requires_grad]
    if pairs:
        averaged, current = zip(*pairs, strict=True)
        torch._foreach_lerp_(averaged, current, 1.0 - momentum)


def rising_momentum(start: float, progress: float) -> float:
    """Return the momentum that rises from ``start`` to 1 along half a cosine, as in BYOL and DINO."""
    return 1 - (1 - start) * (math.cos(math.pi * progress) + 1) / 2
