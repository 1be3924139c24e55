"""Settings that several methods share."""

from __future__ import annotations

from typing import Any

# BYOL's pair: one view always blurred, the other seldom and sometimes solarized.
ASYMMETRIC_VIEWS: dict[str, Any] = {
    "views.scale": (0.08, 1.0),
    "views.saturation": 0.2,
    "views.blur": 1.0,
    "views.second_blur": 0.1,
    "views.second_solarize": 0.2,
}


def warm_up(epochs: int) -> dict[str, Any]:
    """Ten epochs of a hundred, and that share of a shorter run; then a cosine that moves every step."""
    return {"optim.warmup_epochs": min(10.0, epochs / 10), "optim.cosine": "step"}


def lars(rate: float, batch: int, epochs: int, weight_decay: float = 1e-6) -> dict[str, Any]:
    """``rate`` is that of a batch of 256."""
    return {
        "optim.optimizer": "lars",
        "optim.lr": rate * batch / 256,
        "optim.weight_decay": weight_decay,
        **warm_up(epochs),
    }
