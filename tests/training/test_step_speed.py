"""What a step costs beside another one, by processor time in turns: ratios that other programs do not move."""

import time
from typing import Any

import torch

from finesight.training.batches import Batch
from finesight.training.module import TrainingModule
from small import drive, seeded, small_module, torch_threads

BATCH, ROUNDS = 16, 5
NETWORK: dict[str, Any] = {
    "backbone.name": "resnet18",
    "backbone.output_stride": 32,
    "views.resolution": 64,
    "batch_size": BATCH,
}


def cost(one: TrainingModule, other: TrainingModule) -> float:
    """Return the processor time of a step of ``one`` in steps of ``other``, each the quickest of several."""
    canvas = torch.randint(0, 256, (BATCH, 3, 72, 72), generator=seeded(), dtype=torch.uint8)
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch_threads(1):
        for step in range(ROUNDS + 1):
            batch = Batch(step, canvas, torch.full((BATCH, 2), 72), slice(None), None)
            for training, spent in zip((one, other), seconds, strict=True):
                began = time.process_time()
                drive(training, batch)
                spent.append(time.process_time() - began)
    return min(seconds[0][1:]) / min(seconds[1][1:])  # the first step allocates


def test_the_rationale_costs_little() -> None:
    """1.02 is usual. What shares the caches may slow down a whole round, hardly several."""
    ratios: list[float] = []
    while len(ratios) < 4 and min(ratios, default=9.0) >= 1.2:
        ratios.append(cost(*(small_module(method, **NETWORK) for method in ("lcr", "moco-v2"))))
    assert min(ratios) < 1.2, ratios
