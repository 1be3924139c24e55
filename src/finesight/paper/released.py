"""The linear probe as the released code of the paper trains it, for comparing like with like.

A linear layer, N(0, 0.01) weights and zero bias, on unit features of random-resized-crop and flip views that are new
every epoch; SGD at rate 30, momentum 0.9, no weight decay, batches of 256, 100 epochs, a tenth of the rate after 60 and
a hundredth after 80. Test images are seen as center views. The released code reports the best epoch *on test*; the
score here is the last epoch, and the other stands beside it under its own name.

Every epoch is a pass of the network over all train images. All that is random about one follows from the seed and its
number, so that the training can be stopped anywhere and goes on to the same bits. One pass serves all label fractions:
a fraction's layer takes a step as soon as 256 of its own images have come by.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finesight.data.cache import DecodedCache
from finesight.data.decode import os_reason
from finesight.data.views import ViewConfig, ViewParams, apply_views, sample_params
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.fractions import Parts
from finesight.evaluation.linear import ProbeResult, class_index, class_places, divide_rows, predict
from finesight.evaluation.metrics import classifier_values
from finesight.features.encoder import Encoder
from finesight.features.row_space import Rows
from finesight.features.wide import Features, row_lengths
from finesight.io.console import console
from finesight.io.lock import locked
from finesight.io.progress import track
from finesight.nn.poolings import find_pooling
from finesight.training.batches import step_generator
from finesight.training.checkpoints import load_checkpoint, save_checkpoint

EPOCHS = 100
RATE = 30.0
MOMENTUM = 0.9
BATCH = 256
STD = 0.01  # of the initial weights
SCALE = (0.08, 1.0)  # of a view's area
PIECE = 64  # images that go through the network together: four processes share a batch of 256 in the released code
SAVE_SECONDS = 60.0
TIMED = 4  # images for the estimate


@dataclass(frozen=True, eq=False)
class Task:
    """What to train on and what to score on."""

    encoder: Encoder
    cache: DecodedCache
    pooling: str
    train: NDArray[np.int64]  # indices into the cache
    test: NDArray[np.int64]
    test_features: Features  # of the center views
    parts: Parts  # indices into ``train``
    epochs: int = EPOCHS
    seed: int = 0

    def labels(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self.cache.source.labels is not None
        return self.cache.source.labels[images]

    @property
    def views(self) -> ViewConfig:
        config = self.encoder.config
        none = {"jitter": 0.0, "gray": 0.0, "blur": 0.0}
        return ViewConfig(resolution=config.resolution, scale=SCALE, mean=config.mean, std=config.std, **none)


def milestones(epochs: int) -> tuple[int, int]:
    """The epochs, counted from 0, at which the rate falls to a tenth: 60 and 80 of 100, the same shares of others."""
    return round(0.6 * epochs), round(0.8 * epochs)


def rate_at(epoch: int, epochs: int) -> float:
    return float(RATE * 0.1 ** sum(epoch >= milestone for milestone in milestones(epochs)))


def released_probe(
    task: Task,
    *,
    state: Path | None = None,
    progress: bool = True,
) -> dict[str, ProbeResult]:
    """By percent of the labels, as ``linear_probe`` gives it: the scores after the last epoch, and the best on test.

    What has been learned is kept in a folder below ``state``, every minute and after every epoch; the same task goes on
    from there, and one that has ended gives its result at once.
    """
    if find_pooling(task.pooling).needs_objects:
        raise FineSightError(f"Pooling {task.pooling!r} is a control and has no random views: leave out the probe.")
    training = _Training(task)
    with _kept(state, task, progress) as folder:
        training.restore(folder)
        try:
            training.run(folder, progress)
        except KeyboardInterrupt:
            again = "The same command continues." if folder else "Nothing was kept: give --state a folder next time."
            raise Interrupted(signal.SIGINT, f"Stopped in epoch {training.epoch + 1}. {again}") from None
    return {
        str(percent): probe.result(training.test, training.target, task.epochs)
        for percent, probe in training.probes.items()
    }


class _Probe:
    """One linear layer, and the features that wait for their batch to be full."""

    def __init__(self, width: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, width, generator=generator) * STD)
        self.bias = nn.Parameter(torch.zeros(classes))
        self.optimizer = torch.optim.SGD([self.weight, self.bias], lr=RATE, momentum=MOMENTUM)
        self.x, self.y = torch.empty(0, width), torch.empty(0, dtype=torch.int64)
        self.history: list[tuple[float, float]] = []  # top-1 and top-5 on test after every epoch

    def add(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        while len(self.y) >= BATCH:
            self._step()

    def finish(self, test: Rows, target: Tensor) -> None:
        """The last batch of an epoch is as small as it is."""
        if len(self.y):
            self._step()
        places = self.places(test, target)
        self.history.append((100 * float((places <= 1).mean()), 100 * float((places <= 5).mean())))

    def _step(self) -> None:
        x, y = self.x[:BATCH], self.y[:BATCH]
        self.x, self.y = self.x[BATCH:], self.y[BATCH:]
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(nn.functional.linear(x, self.weight, self.bias), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def places(self, test: Rows, target: Tensor) -> NDArray[np.int64]:
        weight = torch.cat([self.weight, self.bias[:, None]], dim=1)
        return class_places(predict(weight[None], test)[0], target)

    def result(self, test: Rows, target: Tensor, epochs: int) -> ProbeResult:
        best = max(range(len(self.history)), key=lambda epoch: self.history[epoch][0])  # the first of equals
        best_on_test = {"top1": self.history[best][0], "top5": self.history[best][1], "epoch": best + 1}
        setting = {"lr": RATE, "epochs": float(epochs), "best_on_test": best_on_test}
        return ProbeResult(classifier_values("linear", self.places(test, target)), setting)

    def state(self) -> dict[str, Any]:
        """The slices are copied: what is saved is what they are views of."""
        learned = {"weight": self.weight.data, "bias": self.bias.data, "optimizer": self.optimizer.state_dict()}
        return learned | {"history": self.history, "x": self.x.clone(), "y": self.y.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight.data.copy_(state["weight"])
        self.bias.data.copy_(state["bias"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history, self.x, self.y = list(state["history"]), state["x"], state["y"]


class _Training:
    """The probes of all fractions, and how far they have come."""

    def __init__(self, task: Task) -> None:
        self.task = task
        labels = task.labels(task.train)
        classes = np.unique(labels[labels >= 0])
        if len(classes) < 2:
            raise FineSightError("The linear probe needs labeled train images of at least two classes.")
        self.y = torch.from_numpy(class_index(classes, labels))  # (train,)
        known = task.labels(task.test) >= 0
        features = task.test_features[known]
        self.test = divide_rows(features, row_lengths(features))
        self.target = torch.from_numpy(class_index(classes, task.labels(task.test)[known]))
        self.members = {p: torch.from_numpy(np.isin(np.arange(len(labels)), part)) for p, part in task.parts.items()}
        self.used = np.flatnonzero(np.any([members.numpy() for members in self.members.values()], axis=0))
        width = features.shape[1]
        self.probes = {percent: _Probe(width, len(classes), task.seed) for percent in task.parts}
        self.sizes = torch.from_numpy(task.cache.sizes[task.train])
        self.pieces = math.ceil(len(self.used) / PIECE)
        self.epoch, self.piece = 0, 0  # the next to be done

    def run(self, folder: Path | None, progress: bool) -> None:
        left = (self.task.epochs - self.epoch) * self.pieces - self.piece
        if left and progress:
            self._estimate(left, folder)
        saved = time.monotonic()
        plan = self._plan(self.epoch)
        for _ in track(range(left), left, "training the probe", show=progress):
            self._advance(*plan)
            if self.piece == 0:
                plan = self._plan(self.epoch)
            if folder is not None and (self.piece == 0 or time.monotonic() - saved >= SAVE_SECONDS):
                self._save(folder)
                saved = time.monotonic()

    def _plan(self, epoch: int) -> tuple[NDArray[np.int64], ViewParams]:
        """The order of the train images and a view of each; drawn for all, whichever fractions are asked for."""
        order = np.random.default_rng([self.task.seed, epoch]).permutation(len(self.task.train))
        params = sample_params(self.task.views, self.sizes, step_generator(self.task.seed, epoch))
        return order[np.isin(order, self.used)], params

    def _advance(self, order: NDArray[np.int64], params: ViewParams) -> None:
        rows = torch.from_numpy(order[self.piece * PIECE : (self.piece + 1) * PIECE])
        if self.piece == 0:
            for probe in self.probes.values():
                probe.optimizer.param_groups[0]["lr"] = rate_at(self.epoch, self.task.epochs)
        features = self._features(rows, params[rows])
        for percent, probe in self.probes.items():
            mine = self.members[percent][rows]
            probe.add(features[mine], self.y[rows[mine]])
        self.piece += 1
        if self.piece == self.pieces:
            for probe in self.probes.values():
                probe.finish(self.test, self.target)
            self.epoch, self.piece = self.epoch + 1, 0

    def _features(self, rows: Tensor, params: ViewParams) -> Tensor:
        """(n,) places in train, (n,) views -> (n, D) of length 1"""
        encoder = self.task.encoder
        canvas, _ = self.task.cache.batch(self.task.train[rows.numpy()])
        views = apply_views(self.task.views, canvas.to(encoder.device), params)
        return nn.functional.normalize(encoder.encode(views, (self.task.pooling,)).features[self.task.pooling], dim=1)

    def _estimate(self, left: int, folder: Path | None) -> None:
        """From a few real images, before the hours begin."""
        rows = torch.from_numpy(self.used[np.linspace(0, len(self.used) - 1, TIMED).round().astype(int)])
        order, params = self._plan(self.epoch)
        self._features(rows[:1], params[rows[:1]])  # the first call is slower
        began = time.monotonic()
        self._features(rows, params[rows])
        each = (time.monotonic() - began) / TIMED
        where = (
            f"Its state is kept in {folder}: the same command continues."
            if folder
            else ("Its state is not kept (give --state a folder to be able to continue).")
        )
        console.print(
            f"The released probe passes {self.task.epochs} times over {len(order):,} train images; "
            f"{left / self.pieces:.4g} passes are left, at {each:.3g} s an image about "
            f"{duration(each * len(order) * left / self.pieces)}. {where}",
            markup=False,
        )

    def _save(self, folder: Path) -> None:
        state = {"epoch": self.epoch, "piece": self.piece}
        probes = {str(percent): probe.state() for percent, probe in self.probes.items()}
        try:
            save_checkpoint(folder, self.epoch * self.pieces + self.piece, state | {"probes": probes})
        except OSError as error:
            raise FineSightError(f"The probe's state cannot be kept in {folder}: {os_reason(error)}.") from error

    def restore(self, folder: Path | None) -> None:
        kept = load_checkpoint(folder) if folder is not None else None
        if kept is not None:
            _, state = kept
            self.epoch, self.piece = state["epoch"], state["piece"]
            for percent, probe in self.probes.items():
                probe.restore(state["probes"][str(percent)])


def duration(seconds: float) -> str:
    """Two units are enough."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextmanager
def _kept(state: Path | None, task: Task, progress: bool) -> Iterator[Path | None]:
    """The task's own folder, for one process at a time."""
    if state is None:
        yield None
        return
    folder = state / f"probe-{_fingerprint(task)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FineSightError(f"The probe's state cannot be kept in {folder}: {os_reason(error)}.") from error
    waiting = "Another process is training this probe; waiting for it"
    with locked(folder / "lock", on_wait=lambda: console.print(waiting) if progress else None):
        yield folder


def _fingerprint(task: Task) -> str:
    """Of everything the result depends on: a state is never continued with other images, weights or options."""
    facts = [task.pooling, task.epochs, task.seed, task.encoder.config.model_dump(mode="json"), sorted(task.parts)]
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(task.encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    for images in (task.train, task.test):
        digest.update(np.ascontiguousarray(task.cache.keys[images]).data)
        digest.update(np.ascontiguousarray(task.labels(images)).data)
    for _, part in sorted(task.parts.items()):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
