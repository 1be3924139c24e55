"""The images that a run began with, so that it can go on when photos were added or removed.

What was decided by the number of images stays with the run: the steps of an epoch and so the schedule, which images
are held out, and the classes that a method with labels learns. Sizes of tensors are read off the checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import DecodedCache
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path
from finesight.io.console import format_count
from finesight.methods.base import find_method
from finesight.nn.distributed import from_first, gather_objects
from finesight.training.config import TrainConfig
from finesight.training.hooks import TrainingHook, rename_hook_state
from finesight.training.metrics_log import STEP, read_metrics
from finesight.training.run_folder import RunFolder

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunImages:
    """What ``images.npz`` of a run folder holds: hashes of 8 bytes an image, not the names."""

    paths: Hashes  # of every readable train image, as its path in the source
    held_out: Hashes  # those of them that training must not see
    held_out_pixels: Hashes  # the same images by their decoded pixels: renamed, they are still held out
    classes: tuple[str, ...]
    steps_per_epoch: int

    @classmethod
    def of(cls, cache: DecodedCache, held_out: Indices, steps_per_epoch: int) -> RunImages:
        """Return what a run that begins now has to remember."""
        paths = path_hashes(cache.source)
        pixels = _pixel_hashes(cache, () if cache.is_part else held_out)  # which may be on other machines
        return cls(paths, paths[held_out], pixels, cache.source.classes, steps_per_epoch)

    def write(self, file: Path) -> None:
        with atomic_path(file, sync=True) as scratch:
            np.savez(scratch, **{**vars(self), "classes": np.array(self.classes, np.str_)})

    @classmethod
    def read(cls, file: Path) -> RunImages | None:
        """Return what a run remembers; None for one of an earlier version, or if the file is damaged."""
        try:
            with np.load(file, allow_pickle=False) as content:
                facts: dict[str, Any] = {name: content[name] for name in cls.__dataclass_fields__}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        classes, steps = tuple(facts.pop("classes").tolist()), int(facts.pop("steps_per_epoch"))
        return cls(classes=classes, steps_per_epoch=steps, **facts)

    def limit(self, source: ImageSource, order: Indices, count: int) -> Indices:
        """Return ``count`` images of the source, ascending: those of the run first, the others in the given order."""
        new = ~np.isin(path_hashes(source), self.paths)
        return np.sort(order[np.argsort(new[order], kind="stable")][:count])

    def split(self, cache: DecodedCache) -> tuple[Indices, Indices]:
        """Return which images are trained on, new ones among them, and which stay held out."""
        hashes = path_hashes(cache.source)
        held = np.isin(hashes, self.held_out)
        new = np.flatnonzero(~np.isin(hashes, self.paths))
        if len(self.held_out_pixels) and not cache.is_part:
            held[new] = np.isin(_pixel_hashes(cache, new), self.held_out_pixels)
        return np.flatnonzero(~held), np.flatnonzero(held)

    def relabel(self, cache: DecodedCache) -> DecodedCache:
        """Return the cache with the run's own numbers of the classes; images of other classes have no label."""
        source = cache.source
        if source.labels is None or source.classes == self.classes:
            return cache
        number = {name: i for i, name in enumerate(self.classes)}
        known = np.array([*(number.get(name, -1) for name in source.classes), -1], np.int64)
        return replace(cache, source=replace(source, labels=known[source.labels], classes=self.classes))

    def changes(self, source: ImageSource) -> str:
        """Return in words which images are new and how many are gone; an empty text if none."""
        now = path_hashes(source)
        new, gone = int((~np.isin(now, self.paths)).sum()), int((~np.isin(self.paths, now)).sum())
        if not new and not gone:
            return ""
        return (
            f"{format_count(new, 'new image')}, {gone:,} gone since this run began: it goes on with the "
            f"{len(now):,} that are there, for as many steps as before."
        )


def path_hashes(source: ImageSource) -> Hashes:
    """Return a hash of each image's path in the source."""
    return _hashes(os.fsencode(path) for path in source.paths.tolist())


def require_same_images(cache: DecodedCache) -> None:
    """Raise FineSightError if another process, on another machine, finds other images."""
    digest = hashlib.blake2b(path_hashes(cache.source).tobytes()).digest()
    count, first = from_first(lambda: (len(cache), digest))
    if any(gather_objects(first != digest)):
        raise FineSightError(
            f"The machines do not see the same images: {len(cache):,} here, {count:,} on the first one. "
            "Give all of them the same files under the same names."
        )


def _pixel_hashes(cache: DecodedCache, images: Iterable[int]) -> Hashes:
    return _hashes(np.ascontiguousarray(cache.image(i)).tobytes() for i in images)


def _hashes(contents: Iterable[bytes]) -> Hashes:
    digests = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(digests, np.uint64).copy()


# --- a checkpoint and other images than it was written with -----------------------------------------------------------


def restored_config(config: TrainConfig, state: dict[str, Tensor]) -> tuple[TrainConfig, int]:
    """Return the settings and the number of classes with which a module of this state's sizes is built."""
    kind = find_method(config.method).find_objective()
    assert kind is not None
    own = {name.removeprefix("objective."): value for name, value in state.items() if name.startswith("objective.")}
    objective, classes = kind.restored_sizes(config.objective, own)
    return config.model_copy(update={"objective": objective}), classes


def carry_rows(hook: TrainingHook, state: dict[str, Tensor], before: Tensor | None, now: Hashes) -> None:
    """Give the rows that the hook keeps for each image, in a module's state, to the images that are there now.

    New images begin as in a new run. ``before`` are the hashes of the rows; a checkpoint of an earlier version has
    none, and its rows are kept where their number still fits.
    """
    rename_hook_state(state)
    old = None if before is None else before.numpy().view(np.uint64)
    if old is not None and np.array_equal(old, now):
        return
    for name, fresh in hook.rows().items():
        rows = state.get(f"hook.{name}")
        if rows is None or (old is None and len(rows) == len(fresh)):
            continue
        carried = fresh.clone()
        if old is not None:
            _, there, here = np.intersect1d(old, now, return_indices=True)
            carried[torch.from_numpy(here)] = rows[torch.from_numpy(there)]
        state[f"hook.{name}"] = carried


def steps_per_epoch(run: RunFolder, now: int) -> int:
    """Return the steps an epoch had in a run of an earlier version, by its metrics; ``now`` if they do not say."""
    rows = read_metrics(run.metrics_file)
    if not rows:
        return now
    done, epochs = int(rows[-1][STEP]) + 1, float(rows[-1]["epoch"])
    fits = abs(done / now - epochs) <= 1e-4  # written with four digits
    return now if fits or epochs <= 0 else max(1, round(done / epochs))
