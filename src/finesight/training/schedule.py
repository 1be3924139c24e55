"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal


def cosine_factor(
    step: int,
    steps_per_epoch: int,
    epochs: int,
    *,
    warmup_epochs: float = 0.0,
    every: Literal["epoch", "step"] = "epoch",
    min_ratio: float = 0.0,
) -> float:
    """Return the factor of the base rate: a linear warm-up, then half a cosine down to ``min_ratio`` at ``epochs``."""
    progress = step / steps_per_epoch  # in epochs
    if progress < warmup_epochs:
        return (step + 1) / (warmup_epochs * steps_per_epoch + 1)
    if every == "epoch":
        progress = math.floor(progress)
    share = (progress - warmup_epochs) / max(epochs - warmup_epochs, 1e-12)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share))))
