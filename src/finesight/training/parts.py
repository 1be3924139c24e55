"""Decoded images in parts: each machine decodes and keeps only the parts that its processes train on.

The part of an image follows from its path, so it stays the same when other images come and go. A batch takes as many
images of each part, in the order of the parts; so which process reads which part is known beforehand, and any number
of processes, one among them, trains on the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.sources import ImageSource
from finesight.data.store import Entries
from finesight.errors import FineSightError
from finesight.nn.distributed import gather_objects, world
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.hooks import TrainingHook
from finesight.training.run_images import path_hashes


def part_numbers(source: ImageSource, parts: int) -> NDArray[np.int64]:
    """Return the part of each image."""
    return (path_hashes(source) % np.uint64(parts)).astype(np.int64)


def batch_parts(
    config: TrainConfig, runtime: RuntimeConfig, hook: TrainingHook, source: ImageSource, images: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return of which part each of these images is, or None if they are not divided.

    Raises FineSightError if they cannot be: a batch has as many of each part.
    """
    if runtime.cache_shards == 1:
        return None
    if config.batch_size % runtime.cache_shards:
        raise FineSightError(f"--batch-size {config.batch_size} is not a multiple of --cache-shards.")
    if type(hook) is not TrainingHook:
        raise FineSightError(f"Method {config.method!r} looks at all images: leave out --cache-shards.")
    numbers = part_numbers(source, runtime.cache_shards)[images]
    if len(np.unique(numbers)) < runtime.cache_shards:
        raise FineSightError(f"{len(images):,} images are too few for --cache-shards {runtime.cache_shards}.")
    return numbers


def open_part(
    source: ImageSource,
    side: int,
    runtime: RuntimeConfig,
    *,
    progress: bool = True,
    callback: Callable[[int, int], None] | None = None,
) -> DecodedCache:
    """Decode the parts that this process trains on, and exchange sizes and reasons with the others.

    The result lists all readable images; those of other parts have a size and no pixels here.
    """
    rank, processes = world()
    parts = runtime.cache_shards
    if parts % processes and processes % parts:
        raise FineSightError(
            f"--cache-shards {parts} and {processes} processes: one must be a multiple of the other, so that no "
            "process needs a part of a part."
        )
    number = part_numbers(source, parts)
    first, last = rank * parts // processes, max(rank * parts // processes + 1, (rank + 1) * parts // processes)
    mine = np.flatnonzero((number >= first) & (number < last))
    if len(np.unique(number)) < parts:
        raise FineSightError(f"{len(source):,} images are too few for --cache-shards {parts}: give a smaller number.")
    own = open_cache(
        source.select(mine),
        side,
        cache_dir=runtime.cache_dir,
        workers=runtime.workers,
        progress=progress,
        callback=callback,
    )
    kept = mine[np.isin(source.paths[mine], own.source.paths)]
    entries, rows = own.entries, own.rows
    columns = (entries.keys[rows], entries.sizes[rows], entries.originals[rows], entries.sums[rows])
    told = _Told(kept, *columns, own.skipped)
    return _joined(source, own, told, gather_objects(told))


@dataclass(frozen=True)
class _Told:
    """What a process tells the others of its images."""

    images: NDArray[np.int64]  # indices into the source, ascending
    keys: NDArray[np.bytes_]
    sizes: NDArray[np.int64]
    originals: NDArray[np.int64]
    sums: NDArray[np.int64]
    skipped: list[tuple[str, str]]


def _joined(source: ImageSource, own: DecodedCache, told: _Told, everything: list[_Told]) -> DecodedCache:
    images, places = np.unique(np.concatenate([one.images for one in everything]), return_index=True)
    here = np.searchsorted(images, told.images)
    shard, offsets = np.full(len(images), -1), np.zeros(len(images), np.int64)
    shard[here], offsets[here] = own.entries.shard[own.rows], own.entries.offsets[own.rows]

    def column(name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = np.concatenate([getattr(one, name) for one in everything])[places]
        return values

    entries = Entries(
        own.entries.shards,
        column("keys"),  # type: ignore[arg-type]
        shard,
        offsets,
        column("sizes"),
        column("originals"),
        np.zeros(len(images), "U1"),
        column("sums"),
    )
    skipped = sorted({entry for one in everything for entry in one.skipped})
    every, unread = np.arange(len(images)), np.zeros(len(images), bool)
    return DecodedCache(source.select(images), skipped, own.scale, entries, every, own.maps, unread)
