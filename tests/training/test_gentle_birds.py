"""Real birds, a real pretrained network, and methods with optimizers of their own: the preset spares what it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finesight.features.encoder import Encoder
from finesight.training.config import RuntimeConfig
from finesight.training.presets import plan_training
from finesight.training.save_encoder import frozen_encoder
from finesight.training.train import train
from finesight.training.train_images import prepare_data
from real_birds import WEIGHTS, cub_root

SMALL_WEIGHTS = WEIGHTS.with_name("resnet18_imagenet.safetensors")
STEPS = 5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not SMALL_WEIGHTS.is_file(), reason=f"there are no ImageNet weights of a ResNet-18 in {SMALL_WEIGHTS}"
    ),
]


@pytest.mark.parametrize("method", ["lcr", "simclr", "supervised"])
def test_a_few_steps_on_sixty_birds(method: str, tmp_path: Path) -> None:
    given = {
        "data": str(cub_root()),
        "limit_classes": 3,
        "limit_images": 60,
        "method": method,
        "backbone": {"name": "resnet18", "weights": str(SMALL_WEIGHTS)},
        "views.resolution": 64,
        "test_resolution": 64,
        "max_steps": STEPS,
    }
    runtime = RuntimeConfig(accelerator="cpu", progress=False)
    plan = plan_training(given, None, runtime)
    assert plan.preset == "gentle"
    assert plan.config.batch_size == 9, "54 images to train on, six held out"
    run = train(plan.config, tmp_path / "run", runtime)
    encoder, frozen = Encoder.load(run.root), frozen_encoder(plan.config)
    after, before = encoder.backbone.state_dict(), frozen.backbone.state_dict()
    moved = {name: after[name] - value for name, value in before.items() if value.is_floating_point()}
    learns = ("model.layer3", "model.layer4")
    assert all(not delta.any() for name, delta in moved.items() if not name.startswith(learns))
    assert all(not delta.any() for name, delta in moved.items() if "running" in name)
    weights = {name: delta for name, delta in moved.items() if name.startswith(learns) and delta.ndim > 1}
    ratios = [float(delta.norm() / before[name].norm()) for name, delta in weights.items()]
    assert 0 < max(ratios) < 0.05
    cache, images, _ = prepare_data(plan.config, runtime)
    views = encoder.cached_views(cache, images[:16])
    ours, theirs = (one.encode(views, ("gem",)).features["gem"] for one in (encoder, frozen))
    assert torch.cosine_similarity(ours, theirs).min() > 0.8
