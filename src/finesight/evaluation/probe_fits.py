"""Fit linear probes to the images of a fraction at the least cost, and score settings on images that are held out."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.evaluation.softmax import (
    Rows,
    batch_count,
    by_rate,
    dense,
    fit,
    fit_products,
    in_leading_directions,
    inner_products,
    predict,
    weights_of,
)

COMPARED = 16_384  # images at most: the matrix of their inner products takes 1 GB then
ROUGH, FINE = 256, 512  # leading directions of many images' features, for all settings and for the two best
TASKS = 2  # at a time: more would be too short, and need more memory

FoldScores = list[tuple[int, float, float]]  # of each rate: held-out images, accuracy, negative loss


@dataclass(frozen=True, eq=False)
class ProbeFits:
    """The images of a fraction, and the coordinates in which probes are fitted to them at the least cost."""

    x: Rows
    y: torch.Tensor
    classes: int
    seed: int
    compared: int  # images at most
    pool: Executor
    stopped: Event  # ends the tasks of the pool
    say: Callable[[str], None]

    @property
    def many(self) -> bool:
        """Whether there are too many images to try all settings on all that is known of them."""
        reducible = isinstance(self.x, torch.Tensor) and self.x.shape[1] > ROUGH
        return reducible and not chooses_by_products(len(self.x), self.x.shape[1], self.compared)

    @property
    def few(self) -> bool:
        """Whether probes are fitted to inner products."""
        return fits_products(len(self.x), self.x.shape[1], self.compared)

    @cached_property
    def prepared(self) -> Future[torch.Tensor]:
        """What settings are tried on: rows in their leading directions, the first of which hold most, or products."""
        if self.many:
            assert isinstance(self.x, torch.Tensor)
            return self.pool.submit(in_leading_directions, self.x, min(FINE, self.x.shape[1]))
        if self.few:
            return self.pool.submit(inner_products, self.x)
        nothing: Future[torch.Tensor] = Future()
        nothing.set_result(torch.empty(0))
        return nothing

    def tell_preparation(self) -> None:
        """Say what ``prepared`` takes time for."""
        if self.many:
            self.say(f"finding the leading directions of {len(self.x)} images")
        elif self.few:
            self.say(f"comparing {len(self.x)} images with each other")

    def fit(self, lr: float, epochs: int) -> torch.Tensor:
        """Return the weights (1, C, D + 1) of a probe that is fitted to all images."""
        options = self.y, self.classes, [lr], epochs, self.seed, batch_count(len(self.y)), self.stopped
        if not self.few:
            return fit(self.x, *options)
        products = inner_products(self.x) if self.many else self.prepared.result()
        return weights_of(fit_products(products, *options), self.x, self.classes)

    def try_rates(
        self, held: NDArray[np.int64], lrs: Sequence[float], epochs: int, directions: int
    ) -> list[Future[FoldScores]]:
        """Begin to fit probes to all but the held-out images; return their scores on these, some rates at a time.

        For many images they are fitted in so many leading directions.
        """
        kept = torch.from_numpy(np.setdiff1d(np.arange(len(self.y)), held))
        y, batches = self.y[kept], batch_count(len(self.y))  # as unsteady as the fit to all
        inside: Rows
        outside: Rows
        if self.many:
            rows = self.prepared.result()[:, :directions]
            inside, outside = rows[kept], rows[held]
        elif self.few:
            products = self.prepared.result()
            inside, outside = products[kept[:, None], kept], products[held[:, None], kept]
        else:
            inside, outside = self.x[kept], self.x[held]

        def score(some: Sequence[float]) -> FoldScores:
            options = y, self.classes, some, epochs, self.seed, batches, self.stopped
            if self.many or not self.few:
                logits = predict(fit(inside, *options), outside)
            else:
                logits = by_rate(dense(outside) @ fit_products(dense(inside), *options), len(some))
            return _fold_scores(logits, self.y[held])

        half = math.ceil(len(lrs) / TASKS)
        return [self.pool.submit(score, lrs[start : start + half]) for start in range(0, len(lrs), half)]


def fits_products(images: int, width: int, most: int = COMPARED) -> bool:
    """Return whether a step on inner products costs less than one on the features: n multiplications, not 2 D."""
    return images <= min(most, 2 * width)


def chooses_by_products(images: int, width: int, most: int = COMPARED) -> bool:
    """Return whether all settings are tried on inner products: not on so many images that directions are cheaper."""
    return images <= min(most, max(5 * ROUGH, width // 2))


def _fold_scores(all_logits: torch.Tensor, y: torch.Tensor) -> FoldScores:
    """Return the scores of each rate, from the logits (G, N, C) of the held-out images."""
    scores = []
    for logits in all_logits:
        accuracy, negative_loss = -1.0, 0.0  # of a probe that overflowed: it loses to every one that did not
        if bool(logits.isfinite().all()):
            accuracy = float(100 * (class_places(logits, y) <= 1).mean())
            negative_loss = -float(torch.nn.functional.cross_entropy(logits, y))
        scores.append((len(y), accuracy, negative_loss))
    return scores


def class_places(logits: torch.Tensor, y: torch.Tensor) -> NDArray[np.int64]:
    """Return the place of the right class among the five highest logits (N, C), from 1; 6 if it is not there."""
    best = logits.topk(min(5, logits.shape[1]), dim=1)
    hit = (best.indices == y[:, None]) & best.values.isfinite()  # topk puts NaN first
    place: NDArray[np.int64] = torch.where(hit.any(dim=1), hit.int().argmax(dim=1) + 1, 6).numpy()
    return place
