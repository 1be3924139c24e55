"""SimSiam's ablation: nothing but the stop-gradient keeps the embeddings apart, and we notice when it is gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from finesight.training.batches import Batch
from finesight.training.config import build_config
from finesight.training.health import collapse_warning
from finesight.training.module import TrainingModule
from small import drive

pytestmark = pytest.mark.slow

IMAGES, SIDE, STEPS = 16, 40, 40
# Crops that share little, and a rate that gets there soon.
SETTINGS: dict[str, Any] = {
    "data": "none",
    "method": "simsiam",
    "batch_size": IMAGES,
    "epochs": 1,
    "backbone.name": "test_resnet",
    "backbone.weights": "random",
    "views.resolution": 32,
    "views.scale": (0.05, 0.2),
    "views.jitter": 0.0,
    "views.gray": 0.0,
    "views.blur": 0.0,
    "optim.lr": 1.0,
    "objective.dim": 16,
    "objective.hidden": 16,
    "objective.bottleneck": 4,
}


def smooth_pictures() -> Tensor:
    coarse = torch.rand(IMAGES, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=SIDE, mode="bicubic").clamp(0, 1).mul(255).to(torch.uint8)


def trained(stop_gradient: bool) -> list[dict[str, float]]:
    """The metrics of every step."""
    config = build_config({**SETTINGS, "objective.stop_gradient": stop_gradient})
    module = TrainingModule(config, images=IMAGES, steps_per_epoch=STEPS)
    canvas, sizes, history = smooth_pictures(), torch.full((IMAGES, 2), SIDE), []
    for step in range(STEPS):
        drive(module, Batch(step, canvas, sizes, slice(None)))
        history.append(module.metrics)
    return history


def test_without_the_stop_gradient_simsiam_collapses_and_a_warning_says_so() -> None:
    healthy, collapsed = trained(stop_gradient=True), trained(stop_gradient=False)
    assert healthy[0]["loss"] == collapsed[0]["loss"], "they begin as one"
    assert [step for step, metrics in enumerate(healthy) if collapse_warning(metrics)] == []
    warned = [step for step, metrics in enumerate(collapsed) if collapse_warning(metrics)]
    assert len(warned) >= 5
    assert warned[0] > 0
    end = {name: sum(row[name] for row in collapsed[-10:]) / 10 for name in ("loss", "effective_rank")}
    kept = {name: sum(row[name] for row in healthy[-10:]) / 10 for name in ("loss", "effective_rank")}
    assert end["effective_rank"] < 0.6 * kept["effective_rank"]
    assert end["loss"] < kept["loss"] - 0.2
