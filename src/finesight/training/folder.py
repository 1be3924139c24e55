"""What is known of the images before a run is planned: how many there are, and a decoded sample of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from finesight.data.cache import DecodedCache, cache_side, count_missing, open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.methods.base import find_method
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.train_images import train_part

SAMPLE = 256  # images
DECODE = 0.02  # seconds of an image, where no image of the sample was left to decode


@dataclass(frozen=True)
class Folder:
    """The train images of a source."""

    count: int  # as far as a sample tells how many of them can be read
    held_out: int  # of them, for validation
    labeled: bool
    unreadable: int = 0  # files of the listing beside them, as far as the sample tells
    decode: float = 0.0  # seconds to decode an image, on average: 0 if all are decoded
    cache: DecodedCache | None = field(default=None, repr=False)  # of a sample; None: nothing was decoded

    @property
    def images(self) -> int:
        """How many are trained on."""
        return self.count - self.held_out

    @property
    def listed(self) -> int:
        """How many files of the listing these are, with those that cannot be read."""
        return self.count + self.unreadable

    def part_for(self, needed: int, config: TrainConfig) -> Folder:
        """Return the smallest part of which ``needed`` images are trained on, the whole folder at most.

        Which files cannot be read is not known of all: it has room for twice as many of them as are likely in it.
        """
        count = needed
        while count < self.count and count - _held_out(count, config, self.labeled) < needed:
            count = needed + _held_out(count, config, self.labeled) + 1
        if count >= self.count:
            return self
        unreadable = min(self.unreadable, -(-2 * count * self.unreadable // self.count))
        return replace(self, count=count, held_out=_held_out(count, config, self.labeled), unreadable=unreadable)


def look_at(
    config: TrainConfig,
    resolution: int,
    runtime: RuntimeConfig,
    *,
    decode: bool = True,
    dry: bool = False,
    sample_size: int = SAMPLE,
) -> Folder | None:
    """Return how many train images there are and, with ``decode``, a decoded sample of them, at least a batch.

    Raises FineSightError if none can be read; in a ``dry`` run None is returned instead.
    """
    try:
        source = train_part(open_source(config.data), config)
        count, labeled = len(source), source.labels is not None
        if not decode:
            return Folder(count, _held_out(count, config, labeled), labeled)
        size = min(count, max(sample_size, config.batch_size))
        chosen = np.sort(np.random.default_rng([config.seed, 4]).permutation(count)[:size])
        sample, side = source.select(chosen), cache_side(resolution)
        missing, before = count_missing(sample, side, runtime.cache_dir), time.monotonic()
        show = runtime.progress
        cache = open_cache(sample, side, cache_dir=runtime.cache_dir, workers=runtime.workers, progress=show)
    except FineSightError:
        if dry:
            return None
        raise
    seconds = (time.monotonic() - before) / missing if missing else DECODE
    left = count_missing(source, side, runtime.cache_dir) if count > size else 0
    readable = round(count * len(cache) / size)
    held_out, unreadable = _held_out(readable, config, labeled), count - readable
    return Folder(readable, held_out, labeled, unreadable, seconds * left / count, cache)


def _held_out(count: int, config: TrainConfig, labeled: bool) -> int:
    validation = config.validation
    return min(validation.max_images, round(count * validation.fraction)) if labeled else 0


def can_train(folder: Folder, config: TrainConfig, processes: int) -> bool:
    """Return whether a batch is full, can be shared and has the labels that the method needs."""
    objective = find_method(config.method).find_objective()
    labels = objective is not None and (folder.labeled or not objective.labeled)
    return labels and folder.images >= config.batch_size and config.batch_size % processes == 0


def free_memory(gpu: bool) -> float | None:
    """Return the free memory of the device in gigabytes, or None where that cannot be asked."""
    if gpu:
        return float(torch.cuda.mem_get_info()[0] / 1e9)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) / 1e6 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
