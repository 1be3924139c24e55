"""What an experiment will take, measured on small steps of the real network before anything long begins."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import cache_side, default_cache_dir
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.evaluation import linear, probe_fits, softmax
from finesight.evaluation.fractions import nested_fractions
from finesight.features.map_runner import BATCH, BATCH_PIXELS
from finesight.features.wide import WIDE
from finesight.nn.earlier_map import find_earlier
from finesight.nn.poolings import find_pooling
from finesight.paper.hooks.objects import ObjectData, is_due
from finesight.paper.machine import system_fact
from finesight.paper.objects.scene import Backdrop
from finesight.training.batches import Batch
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.module import TrainingModule

PROBE = 8  # images of the small step, steps of the small linear probe
FEW = 2  # images of a smaller step: what both take alike does not depend on the batch size
PROGRAM = 0.8e9  # bytes of the interpreter with its libraries
CACHED_SHAPE = 4 / 3  # width by height of a usual photo
CHECKPOINTS = 3  # at most on disk at once: two kept, one being written
JOINED = 1.5  # a network's features while they are put together, over what they take in the end
FRACTIONS = (100, 50, 20)  # percent of the labels that probes are fitted with
GRAM_NUMBER = 8  # bytes a pair of images takes: the inner product, and once more for those outside a fold
BLOCKS = 0.5e9  # bytes of wide features that are compared in float64 at a time

Timer = Callable[[Callable[[], object]], float]


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


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Return the cost of parts that are done one after the other; seconds of one training are a mean."""
    works = [cost.work for cost in costs]
    trainings, networks, probes = (
        sum(getattr(work, name) for work in works) for name in ("trainings", "networks", "probes")
    )
    return Cost(
        Work(trainings, networks, probes, max(work.rows for work in works)),
        training=sum(cost.work.trainings * cost.training for cost in costs) / max(1, trainings),
        scoring=sum(cost.work.networks * cost.scoring for cost in costs) / max(1, networks),
        probing=sum(cost.work.probes * cost.probing for cost in costs) / max(1, probes),
        memory=max(cost.memory for cost in costs),
        runs_disk=sum(cost.runs_disk for cost in costs),
        cache_disk=max(cost.cache_disk for cost in costs),
    )


def estimate(
    config: TrainConfig,
    source: ImageSource,
    work: Work,
    devices: int = 1,
    timer: Timer | None = None,
    *,
    half: bool = False,
) -> Cost:
    """Measure small steps and return the cost of ``work`` on images of which none is decoded yet.

    ``timer`` returns the seconds of a piece of work; by default by the clock. With ``half`` networks compute in
    bfloat16.
    """
    timer = timer or seconds_of

    def network_timer(work: Callable[[], object]) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return timer(work)

    images, train_labels = len(source), source.split("train").labels
    assert train_labels is not None  # the paper's datasets have them
    train, classes = len(train_labels), len(np.unique(train_labels))
    per_epoch = max(1, train // config.batch_size)
    module = TrainingModule(config, images=train, steps_per_epoch=per_epoch, classes=classes).to(_device())
    small_step(module, PROBE, network_timer)  # the first one also allocates
    few_seconds, _ = small_step(module, FEW, network_timer)
    seconds, saved = small_step(module, PROBE, network_timer)
    an_image = max(0.0, seconds - few_seconds) / (PROBE - FEW)
    fixed = max(0.0, seconds - PROBE * an_image)
    steps = config.count_steps(train // config.batch_size)
    weights = sum(value.nbytes for value in module.state_dict().values())
    learned = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    width = feature_width(config, module.objective.backbone.channels)
    held = config.batch_size / (devices if torch.cuda.is_available() else 1)  # processes share the CPU's memory
    learning = 2 * learned + held * saved / PROBE if work.trainings else 0.0
    sides = {cache_side(config.views.resolution), config.encoder_framing.scale.side}
    looking = _looks(config) * train * _forward(module, config.views.resolution, network_timer)
    comparing = (images - train) ** 2 * width * _product_seconds(timer) if width > WIDE else 0.0
    return Cost(
        work,
        training=steps * (fixed + config.batch_size * an_image) + looking,
        scoring=images * _forward(module, config.encoder_resolution, network_timer) + comparing,
        probing=probe_seconds(width, train_labels, timer),
        memory=PROGRAM + weights + max(learning, features_memory(width, images, train, work.rows)),
        runs_disk=work.trainings * (CHECKPOINTS + 1) * (weights + learned),
        cache_disk=sum(images * 3 * CACHED_SHAPE * side**2 for side in sides),
    )


def feature_width(config: TrainConfig, channels: int) -> int:
    """Return how many numbers a feature has: those of every projection in bilinear pooling, of both of two maps."""
    projections = 0 if config.rationale is None else config.rationale.projections
    pooling, backbone = find_pooling(config.pooling), config.backbone
    earlier = find_earlier(backbone.name, backbone.output_stride).channels if pooling.needs_earlier else 0
    return pooling.width(channels, projections, earlier)


def _looks(config: TrainConfig) -> int:
    """Return how often all images go through the network to find where crops should be."""
    if config.focus.source not in ("energy", "rationale"):
        return 0
    return sum(is_due(config.focus.every_n_epochs, epoch, config.epochs) for epoch in range(config.epochs))


def features_memory(width: int, images: int, train: int, rows: int) -> float:
    """Return the bytes of all rows of a run. Wide features are kept in 16 bits, not copied, and compared by image."""
    if width <= WIDE:
        return JOINED * rows * images * width * 4
    compared = train if probe_fits.fits_products(train, width) else 0
    return rows * images * width * 2 + GRAM_NUMBER * compared**2 + BLOCKS


def small_step(module: TrainingModule, images: int, timer: Timer) -> tuple[float, float]:
    """Return the seconds of a training step on gray images, and the bytes kept for its backward pass."""
    side = cache_side(module.config.views.resolution)
    canvas = torch.full((images, 3, side, side), 128, dtype=torch.uint8, device=_device())
    sizes, zeros = torch.full((images, 2), side), torch.zeros(images, dtype=torch.long, device=_device())
    backdrop = Backdrop(canvas, sizes, zeros) if module.config.views.pastes else None
    extra = ObjectData(zeros, backdrop)  # every image is the first one, and of class 0
    batch = Batch(0, canvas, sizes, slice(0, images), zeros, extra)
    saved = 0

    def step() -> None:
        nonlocal saved
        loss, saved = saved_bytes(module, lambda: module.training_step(batch, 0))
        loss.backward()  # type: ignore[no-untyped-call]

    seconds = timer(step)
    module.zero_grad()
    return seconds, saved


def saved_bytes(module: torch.nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """Return what ``forward`` returns, and the bytes it keeps for the backward pass beside the module's own."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = forward()
    own = {value.untyped_storage().data_ptr() for value in module.state_dict().values()}
    return loss, sum(size for place, size in kept.items() if place not in own)


@torch.no_grad()
def _forward(module: TrainingModule, resolution: int, timer: Timer) -> float:
    """Return the seconds to embed one image, as the encoder does it on a CPU: some at a time, with norms folded."""
    backbone, count = module.objective.backbone.eval(), max(1, min(BATCH, BATCH_PIXELS // resolution**2))
    images = torch.zeros(count, 3, resolution, resolution, device=_device())
    backbone(images, folded=True)
    return min(timer(lambda: backbone(images, folded=True)) for _ in range(2)) / count


def probe_seconds(width: int, labels: NDArray[np.int64], timer: Timer) -> float:
    """Return the seconds of a row's linear probes; a step on n images' products costs as much as n / 2 dimensions."""
    classes, rates, total = len(np.unique(labels)), linear.LEARNING_RATES, 0.0

    def seconds(dimensions: int) -> float:
        """Of a step of one rate."""
        x, y = torch.randn(softmax.BATCH, dimensions), torch.arange(softmax.BATCH) % classes
        softmax.fit(x, y, classes, rates, 1, 0)
        return timer(partial(softmax.fit, x, y, classes, rates, PROBE, 0)) / PROBE / len(rates)

    for percent in FRACTIONS:
        images = len(nested_fractions(labels, [percent / 100])[percent / 100])
        last = softmax.batch_count(images) * max(linear.EPOCHS)
        choosing = linear.steps_of_one_rate(labels, (percent,)) - last
        compared, own = images // 2, min(width, 2 * probe_fits.ROUGH)
        total += choosing * seconds(compared if probe_fits.chooses_by_products(images, width) else own)
        total += last * seconds(compared if probe_fits.fits_products(images, width) else width)
        if probe_fits.fits_products(images, width):
            total += (images**2 + classes * images) * width * _product_seconds(timer)
    return total


def _product_seconds(timer: Timer) -> float:
    """Return the seconds of one multiplication and addition in a matrix product in float64."""
    side = 512
    x = torch.ones(side, side, dtype=torch.float64)
    x @ x
    return timer(lambda: x @ x) / side**3


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_fits(cost: Cost, runs: Path, runtime: RuntimeConfig) -> None:
    """Raise a ``FineSightError`` if memory or disk are too small, before anything begins."""
    problems = []
    available = available_memory()
    if available is not None and cost.memory > available:
        problems.append(f"it needs {_gib(cost.memory)} of memory and {_gib(available)} are free")
    for folder, need in _disks(cost, runs, runtime.cache_dir or default_cache_dir()).items():
        free = shutil.disk_usage(folder).free
        if need > free:
            problems.append(f"it needs {_gib(need)} of disk and {folder} has {_gib(free)} free")
    if problems:
        raise FineSightError(f"This profile does not fit this machine: {'; '.join(problems)}. Nothing was started.")


def _disks(cost: Cost, runs: Path, cache: Path) -> dict[Path, float]:
    """Return what each disk must hold, by a folder on it. Images that are decoded already need no more."""
    runs, cache = _existing(runs), _existing(cache)
    decoded = sum(file.stat().st_size for file in cache.glob("v1-side*/*/pixels.bin"))
    images = max(0.0, cost.cache_disk - decoded)
    if runs.stat().st_dev == cache.stat().st_dev:
        return {runs: cost.runs_disk + images}
    return {runs: cost.runs_disk, cache: images}


def available_memory() -> float | None:
    """Return the bytes that are free without swapping, of the GPU if there is one; None if unknown."""
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0])
    if available := system_fact("meminfo", "MemAvailable"):
        return float(available.split()[0]) * 1024
    with suppress(ValueError, OSError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return None


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
