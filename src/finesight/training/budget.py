"""A time budget: a few steps are timed, then the length of the run is fitted to the minutes there are."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finesight.data.cache import DecodedCache
from finesight.io.console import console
from finesight.training.batches import Batch, Batches
from finesight.training.begin import refuse_a_single_cell
from finesight.training.config import TrainConfig
from finesight.training.module import TrainingModule

RESERVE = 0.1  # of the training time: other programs may need the processor for a while
FEWEST_STEPS = 20  # of a run that is worth a start
CHECKS = 2  # passes over the held-out images at the end, beside those of validation: the frozen and the trained network
REPORT_IMAGES = 128  # through the encoder, for the report
CLOSING = 15.0  # seconds to start, to save and to draw
ENCODED = 8  # images at once, as the encoder does
TIMED, TIMED_SECONDS = 5, 12.0  # steps at most after the first, and seconds after which no other begins


@dataclass(frozen=True)
class Pace:
    """Seconds that things take here."""

    step: float  # of training
    image: float  # through the finished encoder
    prepare: float = 0.0  # of an image before the first step, for methods that look for objects
    look: float = 0.0  # of an image before an epoch, for methods that look where crops should be
    decode: float = 0.0  # of an image, averaged over those that are decoded already


@dataclass(frozen=True)
class Work:
    """What a run has to do, apart from its steps."""

    images: int  # to train on
    held_out: int
    batch: int
    epochs: int = 1
    validate_every: int = 5  # epochs

    def closing(self, pace: Pace) -> float:
        """Return the seconds that remain after the last step, those of validation included."""
        passes = self.held_out * (self.epochs // self.validate_every + 1 + CHECKS) + REPORT_IMAGES
        return CLOSING + passes * pace.image + (self.held_out + REPORT_IMAGES // 2) * pace.decode

    def training(self, steps: int, pace: Pace) -> float:
        """Return the seconds of so many steps, with all that is done before for the images that they look at."""
        trained = min(self.images, steps * self.batch)
        decoded = trained * (1 + self.held_out / max(1, self.images))
        looks = self.epochs // max(1, self.epochs // 5)
        before = decoded * pace.decode + trained * (pace.prepare + looks * pace.look)
        return steps * pace.step * (1 + RESERVE) + before


def steps_within(seconds: float, work: Work, pace: Pace, most: int) -> int:
    """Return how many steps, at most ``most``, end within the seconds; 0 if not one does."""
    left = seconds - work.closing(pace)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if work.training(middle, pace) <= left else (low, middle - 1)
    return low


def minutes_for(steps: int, work: Work, pace: Pace, used: float) -> float:
    """Return the minutes that such a run takes, rounded up to halves."""
    return math.ceil((used + work.closing(pace) + work.training(steps, pace)) / 30) / 2


def measure(
    config: TrainConfig,
    cache: DecodedCache,
    *,
    device: torch.device,
    processes: int = 1,
    cache_dir: Path | None = None,
    checkpoint_activations: bool = False,
    fewest: int = 3,
    seconds: float = TIMED_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Pace:
    """Time the steps of a scratch copy of the run on images of ``cache``, and the encoder. No random state changes.

    At least ``fewest`` steps are timed, and no other begins after so many ``seconds``.
    """
    count, share = len(cache), max(2, config.batch_size // processes)
    config = config.model_copy(update={"batch_size": share})
    per_epoch = max(1, count // share)
    with torch.random.fork_rng(), _silence():
        module = TrainingModule(config, images=count, steps_per_epoch=per_epoch, classes=len(cache.source.classes))
        if checkpoint_activations:
            module.checkpoint_activations()
        refuse_a_single_cell(module)
        module.to(device).train()
        images = np.arange(count)
        options: dict[str, Any] = {"batch_size": share, "steps_per_epoch": per_epoch, "seed": config.seed}
        start = clock()
        module.hook.on_fit_start(cache, images, cache_dir)
        prepared = clock()
        steps: list[float] = []
        batches = iter(Batches(cache, images, hook=module.hook, epochs=1, steps=TIMED + 1, **options))
        while len(steps) < fewest or (len(steps) <= TIMED and clock() - prepared < seconds):
            before = clock()
            _take_step(module, next(batches), device)
            steps.append(clock() - before)
        before = clock()
        module.hook.on_epoch_start(module, max(1, module.epochs // 5))
        looked = clock() - before
        image = _encoding(module, config.encoder_resolution, device, clock)
        return Pace(statistics.median(steps[1:] or steps), image, (prepared - start) / count, looked / count)


@contextmanager
def _silence() -> Iterator[None]:
    """Say nothing of what the scratch copy does."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def _take_step(module: TrainingModule, batch: Batch, device: torch.device) -> None:
    moved = module.transfer_batch_to_device(batch, device, 0)
    module.on_train_batch_start(moved, 0)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        loss = module.training_step(moved, 0)
    module.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    module.optimizer.step()
    module.finish_step(moved)
    _wait(device)


@torch.no_grad()
def _encoding(module: TrainingModule, side: int, device: torch.device, clock: Callable[[], float]) -> float:
    network = module.objective.exported
    network.eval()
    images = torch.zeros(ENCODED, 3, side, side, device=device)
    times = []
    for _ in range(3):
        start = clock()
        network(images, folded=True)
        _wait(device)
        times.append(clock() - start)
    return min(times) / ENCODED


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
