"""Which images make which step: a pure function of seed and step, so a run can continue at any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import DecodedCache
from finesight.training.hooks import TrainingHook


@dataclass(frozen=True)
class Batch:
    """One rank's share of a step, still as decoded pixels."""

    step: int
    canvas: Tensor  # (n, 3, Hmax, Wmax) uint8
    all_sizes: Tensor  # (N, 2) sizes of the joined batch: every rank draws the views' parameters for all of it
    share: slice  # this rank's rows of the joined batch
    labels: Tensor | None = None  # (n,) of this rank's images; -1: unknown
    extra: Any = None  # what the training hook adds


def step_generator(seed: int, step: int) -> torch.Generator:
    """Return the random generator of one step: the same in any process, whatever ran before."""
    state = np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> 1))


class Batches:
    """Steps from ``start`` on over ``images``, ascending indices into the cache; the rest of an epoch is left out."""

    def __init__(
        self,
        cache: DecodedCache,
        images: NDArray[np.int64],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        start: int = 0,
        rank: int = 0,
        processes: int = 1,
        hook: TrainingHook | None = None,
    ) -> None:
        self.cache, self.images, self.batch_size, self.seed, self.start = cache, images, batch_size, seed, start
        self.hook = hook
        self.sizes = cache.sizes
        self.steps_per_epoch = len(images) // batch_size
        self.total = self.steps_per_epoch * epochs
        share = batch_size // processes
        self.share = slice(rank * share, (rank + 1) * share)

    def __len__(self) -> int:
        return max(0, self.total - self.start)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the joined batch of a step, as indices into the cache."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.images)
        return order[position * self.batch_size : (position + 1) * self.batch_size]

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.start, self.total):
            joined = self.indices(step)
            sizes = torch.from_numpy(self.sizes[joined])
            canvas, _ = self.cache.batch(joined[self.share])
            extra = None if self.hook is None else self.hook.extra(self, step, joined)
            yield Batch(step, canvas, sizes, self.share, self._labels(joined[self.share]), extra)

    def _labels(self, images: NDArray[np.int64]) -> Tensor | None:
        labels = self.cache.source.labels
        return None if labels is None else torch.from_numpy(labels[images])
