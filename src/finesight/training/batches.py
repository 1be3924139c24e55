"""Which images make which step: a pure function of seed and step, so a run can continue at any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import DecodedCache
from finesight.io.parallel import bounded_map
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


@contextmanager
def network_randomness(seed: int, batch: Batch) -> Iterator[None]:
    """Let dropout and dropped paths draw by step and rank alone; torch's own generators are left as they were."""
    where = [batch.canvas.device] if batch.canvas.is_cuda else []
    state = np.random.SeedSequence([seed, batch.step, batch.share.start or 0]).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=where):
        torch.manual_seed(int(state >> 1))
        yield


class Batches:
    """Steps from ``start`` on over ``images``, ascending indices into the cache; the rest of an epoch is left out.

    ``steps`` are all there are, whatever ``epochs`` says.
    """

    def __init__(
        self,
        cache: DecodedCache,
        images: NDArray[np.int64],
        *,
        batch_size: int,
        epochs: int,
        steps: int | None = None,
        seed: int,
        start: int = 0,
        rank: int = 0,
        processes: int = 1,
        hook: TrainingHook | None = None,
        steps_per_epoch: int | None = None,
        parts: NDArray[np.int64] | None = None,
    ) -> None:
        """Without ``steps_per_epoch`` an epoch has as many steps as the images fill.

        If it has more, images come again within an epoch; if it has fewer, each epoch takes others. ``parts`` says of
        which part each image is (see ``training.parts``); where parts differ in size, images of the smaller ones
        come again too.
        """
        self.cache, self.images, self.batch_size, self.seed, self.start = cache, images, batch_size, seed, start
        self.hook = hook
        self.sizes = cache.sizes
        self.steps_per_epoch = steps_per_epoch or len(images) // batch_size
        self.total = self.steps_per_epoch * epochs if steps is None else steps
        share = batch_size // processes
        self.share = slice(rank * share, (rank + 1) * share)
        self.parts = parts
        self._drawn: tuple[int, NDArray[np.int64]] | None = None  # the epoch that was asked for last, and its order

    def __len__(self) -> int:
        return max(0, self.total - self.start)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the joined batch of a step, as indices into the cache."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(epoch)
        return self._drawn[1][position * self.batch_size : (position + 1) * self.batch_size].copy()

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        """Return the images of an epoch in its order."""
        rng = np.random.default_rng([self.seed, epoch])
        if self.parts is None:
            order = rng.permutation(self.images)
            return np.resize(order, max(len(order), self.steps_per_epoch * self.batch_size))
        order = rng.permutation(len(self.images))
        groups = [order[self.parts[order] == part] for part in range(self.parts.max() + 1)]
        each = self.batch_size // len(groups)
        rows = [np.resize(group, (self.steps_per_epoch, each)) for group in groups]
        drawn: NDArray[np.int64] = self.images[np.concatenate(rows, axis=1).ravel()]
        return drawn

    def __iter__(self) -> Iterator[Batch]:
        """Yield the steps; the pixels of the next one are read while this one trains."""
        steps = ((step, self.indices(step)) for step in range(self.start, self.total))
        for (step, joined), (canvas, _) in bounded_map(self._read, steps, workers=1, ahead=1):
            sizes = torch.from_numpy(self.sizes[joined])
            extra = None if self.hook is None else self.hook.extra(self, step, joined)
            yield Batch(step, canvas, sizes, self.share, self._labels(joined[self.share]), extra)

    def _read(self, item: tuple[int, NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        return self.cache.batch(item[1][self.share])

    def _labels(self, images: NDArray[np.int64]) -> Tensor | None:
        labels = self.cache.source.labels
        return None if labels is None else torch.from_numpy(labels[images])
