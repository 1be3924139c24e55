"""Every method with a network of a few thousand weights, driven by hand as Lightning drives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from finesight.methods.base import find_method
from finesight.paper.hooks.objects import ObjectData
from finesight.paper.objects.saliency import SIDE
from finesight.paper.objects.scene import Backdrop
from finesight.training.batches import Batch
from finesight.training.config import build_config
from finesight.training.module import TrainingModule

CLASSES = 4
SMALL: dict[str, Any] = {
    "data": "-",
    "backbone.name": "test_resnet",
    "backbone.weights": "random",
    "backbone.output_stride": 8,
    "views.resolution": 32,
    "batch_size": 8,
    "epochs": 2,
}
SIZES = {"hidden": 16, "dim": 8, "bottleneck": 4, "prototypes": 32}  # of heads, by what objectives call them


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def small_settings(method: str) -> dict[str, Any]:
    """Settings that make any method's heads small, and its local crops few."""
    objective = find_method(method).find_objective()
    if objective is None:
        return {}
    heads = {f"objective.{name}": size for name, size in SIZES.items() if name in objective.Config.model_fields}
    return heads | ({"views.local_crops": 2} if "views.local_crops" in objective.defaults(8, 2) else {})


def small_module(method: str, *, steps_per_epoch: int = 2, **settings: Any) -> TrainingModule:
    """As a run of two epochs begins, the objects of its images already found."""
    config = build_config({**SMALL, **small_settings(method), "method": method, **settings})
    images = config.batch_size * steps_per_epoch
    module = TrainingModule(config, images=images, steps_per_epoch=steps_per_epoch, classes=CLASSES)
    if config.saliency.source != "none":
        module.hook.maps.copy_(small_maps(images))
    return module


def small_maps(images: int) -> torch.Tensor:
    """An object in the middle of each image, of its own shape."""
    generator = torch.Generator().manual_seed(images)
    maps = torch.zeros(images, SIDE, SIDE, dtype=torch.uint8)
    margins = torch.randint(4, 28, (images, 4), generator=generator).tolist()
    for one, (top, left, bottom, right) in zip(maps, margins, strict=True):
        one[top : SIDE - bottom, left : SIDE - right] = 255
    return maps


def small_batch(step: int, size: int = 8) -> Batch:
    """Noise on noise, another one every step."""
    generator = torch.Generator().manual_seed(step)
    canvas = torch.randint(0, 256, (size, 3, 40, 40), dtype=torch.uint8, generator=generator)
    sizes, images = torch.full((size, 2), 40), torch.arange(size)
    behind = torch.randint(0, 256, canvas.shape, dtype=torch.uint8, generator=generator)
    extra = ObjectData(images, Backdrop(behind, sizes, images.roll(1)))
    return Batch(step, canvas, sizes, slice(None), images % CLASSES, extra)


def take_step(module: TrainingModule, step: int) -> None:
    drive(module, small_batch(step, module.config.batch_size))


def drive(module: TrainingModule, batch: Batch) -> None:
    """One step."""
    module.on_train_batch_start(batch, 0)
    loss = module.training_step(batch, 0)
    module.optimizer.zero_grad()
    loss.backward()
    module.optimizer.step()
    module.finish_step(batch)


def assert_continues(whole: TrainingModule, first: TrainingModule, second: TrainingModule) -> None:
    """Four steps of ``whole`` are two of ``first`` and two more of ``second`` with its state: bit for bit."""
    for step in range(4):
        take_step(whole, step)
    for step in range(2):
        take_step(first, step)
    second.load_state_dict(first.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for step in range(2, 4):
        take_step(second, step)
    expected = whole.state_dict()
    assert [name for name, value in second.state_dict().items() if not torch.equal(value, expected[name])] == []
