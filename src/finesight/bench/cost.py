"""What a bench will take, measured on small steps of the real network before anything long begins."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.config import RuntimeConfig, TrainConfig
from finesight.data.cache import cache_side, default_cache_dir
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.evaluation import linear
from finesight.training.batches import Batch
from finesight.training.module import TrainingModule

PROBE = 8  # images of the small step, steps of the small probe
PROGRAM = 0.8e9  # bytes of the interpreter with its libraries
CACHED_SHAPE = 4 / 3  # width by height of a usual photo
CHECKPOINTS = 3  # at most on disk at once: two kept, one being written
JOINED = 1.5  # a network's features while they are put together, over what they take in the end


@dataclass(frozen=True)
class Work:
    """How much there is to do."""

    trainings: int
    networks: int  # to embed the images with
    probes: int  # poolings that get linear probes
    rows: int  # at most, of one network: its features are held at once


@dataclass(frozen=True)
class Cost:
    """Seconds of one training, of embedding by one network and of one row's probes; bytes of memory and disk."""

    work: Work
    training: float
    scoring: float
    probing: float
    memory: float
    runs_disk: float
    cache_disk: float

    @property
    def seconds(self) -> float:
        work = self.work
        return work.trainings * self.training + work.networks * self.scoring + work.probes * self.probing

    def words(self) -> str:
        work = self.work
        return (
            f"{work.trainings} trainings of about {_time(self.training)}, {work.networks} networks to embed with in "
            f"about {_time(self.scoring)} each, {work.probes} linear probes of about {_time(self.probing)}: "
            f"{_time(self.seconds)} in all on this machine as it is now, {_gib(self.memory)} of memory, "
            f"{_gib(self.runs_disk)} of disk for the runs and {_gib(self.cache_disk)} for decoded images."
        )


def estimate(config: TrainConfig, source: ImageSource, work: Work, devices: int = 1) -> Cost:
    """For images of which none is decoded yet."""
    images, train_labels = len(source), source.split("train").labels
    assert train_labels is not None  # CUB has them
    train = len(train_labels)
    module = TrainingModule(config, images=train, steps_per_epoch=max(1, train // config.batch)).to(_device())
    _step(module)  # the first one also allocates
    step_seconds, saved = _step(module)
    seen = train // config.batch * config.batch * config.epochs
    weights = sum(value.nbytes for value in module.state_dict().values())
    learnt = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    channels = module.objective.backbone.channels
    together = config.batch / devices if torch.cuda.is_available() else config.batch  # processes share the CPU's memory
    learning = 2 * learnt + together * saved / PROBE if work.trainings else 0.0
    sides = {cache_side(config.views.resolution), cache_side(config.encoder_resolution)}
    return Cost(
        work,
        training=seen * step_seconds / PROBE,
        scoring=images * _forward(module, config.encoder_resolution),
        probing=_probe(channels, train_labels),
        memory=PROGRAM + weights + max(learning, JOINED * work.rows * images * channels * 4),
        runs_disk=work.trainings * (CHECKPOINTS + 1) * (weights + learnt),
        cache_disk=sum(images * 3 * CACHED_SHAPE * side**2 for side in sides),
    )


def _step(module: TrainingModule) -> tuple[float, float]:
    """Seconds of a training step on ``PROBE`` grey images, and the bytes kept for its backward pass."""
    side = cache_side(module.config.views.resolution)
    canvas = torch.full((PROBE, 3, side, side), 128, dtype=torch.uint8, device=_device())
    batch = Batch(0, canvas, torch.full((PROBE, 2), side), slice(0, PROBE))
    saved = 0

    def step() -> None:
        nonlocal saved
        loss, saved = saved_bytes(module, lambda: module.training_step(batch, 0))
        loss.backward()  # type: ignore[no-untyped-call]

    seconds = _seconds(step)
    module.zero_grad()
    return seconds, saved


def saved_bytes(module: torch.nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What ``forward`` gives, and the bytes it keeps for the backward pass beside the module's own."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = forward()
    own = {value.untyped_storage().data_ptr() for value in module.state_dict().values()}
    return loss, sum(size for place, size in kept.items() if place not in own)


@torch.no_grad()
def _forward(module: TrainingModule, resolution: int) -> float:
    """Seconds to embed one image, as the encoder does it on a CPU: one at a time."""
    backbone = module.objective.backbone.eval()
    image = torch.zeros(1, 3, resolution, resolution, device=_device())
    backbone(image)
    return min(_seconds(lambda: backbone(image)) for _ in range(3))


def _probe(channels: int, labels: NDArray[np.int64]) -> float:
    """Seconds of a row's linear probes."""
    classes, rates = len(np.unique(labels)), linear.LEARNING_RATES
    x, y = torch.randn(linear.BATCH, channels), torch.arange(linear.BATCH) % classes
    linear.fit(x, y, classes, rates, 1, 0)
    step = _seconds(lambda: linear.fit(x, y, classes, rates, PROBE, 0)) / PROBE / len(rates)
    return step * linear.steps_of_one_rate(labels)


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began


def _device() -> torch.device:
    """Where training would run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def refuse_what_does_not_fit(cost: Cost, runs: Path, runtime: RuntimeConfig) -> None:
    """Said before the start, not by the kernel after an hour."""
    problems = []
    available = available_memory()
    if available is not None and cost.memory > available:
        problems.append(f"it needs {_gib(cost.memory)} of memory and {_gib(available)} are free")
    for place, need in _disks(cost, runs, runtime.cache_dir or default_cache_dir()).items():
        free = shutil.disk_usage(place).free
        if need > free:
            problems.append(f"it needs {_gib(need)} of disk and {place} has {_gib(free)} free")
    if problems:
        raise FineSightError(f"This profile does not fit this machine: {'; '.join(problems)}. Nothing was started.")


def _disks(cost: Cost, runs: Path, cache: Path) -> dict[Path, float]:
    """What each disk must hold, by a folder on it; runs and cache may share one. Images that an earlier start has
    decoded lie there already, and what is missing is asked for again when they are decoded: see the cache's store."""
    runs, cache = _existing(runs), _existing(cache)
    decoded = sum(file.stat().st_size for file in cache.glob("v1-side*/*/pixels.bin"))
    images = max(0.0, cost.cache_disk - decoded)
    if runs.stat().st_dev == cache.stat().st_dev:
        return {runs: cost.runs_disk + images}
    return {runs: cost.runs_disk, cache: images}


def available_memory() -> float | None:
    """Bytes that can be taken without swapping; of the GPU where training would run on one."""
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0])
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    with suppress(ValueError, OSError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return None


def _existing(place: Path) -> Path:
    place = place.absolute()
    while not place.exists():
        place = place.parent
    return place


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
