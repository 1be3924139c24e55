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
# As in the paper: the branch steps by itself, and a hundredth of its loss reaches the encoder.
REACHES_ENCODER: dict[str, Any] = {"rationale.encoder_gradient": 1.0, "rationale.nu": 0.01}
# Energy-focused crops of ContrastiveCrop.
FOCUSED_CROPS: dict[str, Any] = {"focus.source": "energy"}


def warm_up(epochs: int) -> dict[str, Any]:
    """Return settings of a warm-up over a tenth of the epochs, at most ten, and a cosine that moves every step."""
    return {"optim.warmup_epochs": min(10.0, epochs / 10), "optim.cosine": "step"}


def lars(rate: float, batch_size: int, epochs: int, weight_decay: float = 1e-6) -> dict[str, Any]:
    """Return settings of LARS; ``rate`` is the learning rate for a batch of 256."""
    return {
        "optim.optimizer": "lars",
        "optim.lr": rate * batch_size / 256,
        "optim.weight_decay": weight_decay,
        **warm_up(epochs),
    }
