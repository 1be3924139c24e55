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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finesight.data.decode import os_reason
from finesight.data.views import ViewConfig, ViewParams, apply_views, sample_params
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.linear import ProbeResult, class_index, divide_rows
from finesight.evaluation.metrics import classifier_values
from finesight.evaluation.probe_fits import class_places
from finesight.evaluation.protocols import ProbeTask
from finesight.evaluation.softmax import Rows, predict
from finesight.features.encoder import Encoder
from finesight.features.wide import row_lengths
from finesight.io.console import console
from finesight.io.lock import locked
from finesight.io.progress import track
from finesight.nn.poolings import find_pooling
from finesight.paper.protocols.released import ReleasedProtocol, milestones
from finesight.training.batches import step_generator
from finesight.training.checkpoints import load_checkpoint, save_checkpoint

RATE = 30.0
MOMENTUM = 0.9
STD = 0.01  # of the initial weights
SCALE = (0.08, 1.0)  # of a view's area
TIMED = 4  # images for the estimate


def view_config(encoder: Encoder) -> ViewConfig:
    """Return the random crops and flips that the probe is trained on."""
    config = encoder.config
    none = {"jitter": 0.0, "gray": 0.0, "blur": 0.0}
    return ViewConfig(resolution=config.resolution, scale=SCALE, mean=config.mean, std=config.std, **none)


def rate_at(epoch: int, epochs: int) -> float:
    """Return the learning rate in an epoch, counted from 0."""
    return float(RATE * 0.1 ** sum(epoch >= milestone for milestone in milestones(epochs)))


def train_probes(task: ProbeTask, protocol: ReleasedProtocol) -> dict[str, ProbeResult]:
    """Train a probe for each label fraction; return the scores after the last epoch and the best on test, by percent.

    What has been learned is kept in a folder below ``protocol.state``, every minute and after every epoch; the same
    task goes on from there. Raises ``Interrupted`` if the user stops it, and a ``FineSightError`` if the pooling needs
    object boxes, train has fewer than two classes or the state cannot be kept.
    """
    if find_pooling(task.pooling).needs_objects:
        raise FineSightError(f"Pooling {task.pooling!r} is a control and has no random views: leave out the probe.")
    training = _Training(task, protocol)
    with _state_folder(task, protocol) as folder:
        training.restore(folder)
        try:
            training.run(folder)
        except KeyboardInterrupt:
            again = "The same command continues." if folder else "Nothing was kept: give --state a folder next time."
            raise Interrupted(signal.SIGINT, f"Stopped in epoch {training.epoch + 1}. {again}") from None
    return {str(percent): training.result(probe) for percent, probe in training.probes.items()}


class _Probe:
    """One linear layer, and the features that wait until their batch is full."""

    def __init__(self, width: int, classes: int, protocol: ReleasedProtocol) -> None:
        generator = torch.Generator().manual_seed(protocol.seed)
        self.batch_size = protocol.batch_size
        self.weight = nn.Parameter(torch.randn(classes, width, generator=generator) * STD)
        self.bias = nn.Parameter(torch.zeros(classes))
        self.optimizer = torch.optim.SGD([self.weight, self.bias], lr=RATE, momentum=MOMENTUM)
        self.x, self.y = torch.empty(0, width), torch.empty(0, dtype=torch.int64)
        self.history: list[tuple[float, float]] = []  # top-1 and top-5 on test after every epoch

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take a step for every full batch."""
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        while len(self.y) >= self.batch_size:
            self._step()

    def end_epoch(self, test: Rows, target: Tensor) -> None:
        """Take a step for the last, smaller batch and score the layer on test."""
        if len(self.y):
            self._step()
        places = self.places(test, target)
        self.history.append((100 * float((places <= 1).mean()), 100 * float((places <= 5).mean())))

    def _step(self) -> None:
        x, y = self.x[: self.batch_size], self.y[: self.batch_size]
        self.x, self.y = self.x[self.batch_size :], self.y[self.batch_size :]
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(nn.functional.linear(x, self.weight, self.bias), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def places(self, test: Rows, target: Tensor) -> NDArray[np.int64]:
        weight = torch.cat([self.weight, self.bias[:, None]], dim=1)
        return class_places(predict(weight[None], test)[0], target)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold; slices are copied, or all they are views of would be saved."""
        learned = {"weight": self.weight.data, "bias": self.bias.data, "optimizer": self.optimizer.state_dict()}
        return learned | {"history": self.history, "x": self.x.clone(), "y": self.y.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight.data.copy_(state["weight"])
        self.bias.data.copy_(state["bias"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history, self.x, self.y = list(state["history"]), state["x"], state["y"]


class _Training:
    """The probes of all fractions, and how far they have come."""

    def __init__(self, task: ProbeTask, protocol: ReleasedProtocol) -> None:
        self.task, self.protocol = task, protocol
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
        self.probes = {percent: _Probe(features.shape[1], len(classes), protocol) for percent in task.parts}
        self.views = view_config(task.encoder)
        self.sizes = torch.from_numpy(task.cache.sizes[task.train])
        self.pieces = math.ceil(len(self.used) / protocol.forward_size)  # of an epoch
        self.epoch, self.piece = 0, 0  # the next to be done

    def run(self, folder: Path | None) -> None:
        """Train until the last epoch, saving the state in ``folder``."""
        progress = self.task.progress
        left = (self.protocol.probe_epochs - self.epoch) * self.pieces - self.piece
        if left and progress:
            self._print_estimate(left, folder)
        saved = time.monotonic()
        plan = self._plan(self.epoch)
        for _ in track(range(left), left, "training the probe", show=progress):
            self._advance(*plan)
            if self.piece == 0:
                plan = self._plan(self.epoch)
            if folder is not None and (self.piece == 0 or time.monotonic() - saved >= self.protocol.save_seconds):
                self._save(folder)
                saved = time.monotonic()

    def result(self, probe: _Probe) -> ProbeResult:
        """Return the scores of a probe after the last epoch, and the best on test (the first of equals)."""
        best = max(range(len(probe.history)), key=lambda epoch: probe.history[epoch][0])
        best_on_test = {"top1": probe.history[best][0], "top5": probe.history[best][1], "epoch": best + 1}
        setting = {"lr": RATE, "epochs": float(self.protocol.probe_epochs), "best_on_test": best_on_test}
        return ProbeResult(classifier_values("linear", probe.places(self.test, self.target)), setting)

    def _plan(self, epoch: int) -> tuple[NDArray[np.int64], ViewParams]:
        """Return the order of the train images and a view of each; drawn for all, whichever fractions are asked for."""
        order = np.random.default_rng([self.protocol.seed, epoch]).permutation(len(self.task.train))
        params = sample_params(self.views, self.sizes, step_generator(self.protocol.seed, epoch))
        return order[np.isin(order, self.used)], params

    def _advance(self, order: NDArray[np.int64], params: ViewParams) -> None:
        size = self.protocol.forward_size
        rows = torch.from_numpy(order[self.piece * size : (self.piece + 1) * size])
        if self.piece == 0:
            for probe in self.probes.values():
                probe.optimizer.param_groups[0]["lr"] = rate_at(self.epoch, self.protocol.probe_epochs)
        features = self._features(rows, params[rows])
        for percent, probe in self.probes.items():
            mine = self.members[percent][rows]
            probe.add(features[mine], self.y[rows[mine]])
        self.piece += 1
        if self.piece == self.pieces:
            for probe in self.probes.values():
                probe.end_epoch(self.test, self.target)
            self.epoch, self.piece = self.epoch + 1, 0

    def _features(self, rows: Tensor, params: ViewParams) -> Tensor:
        """Return the features of views of some train images, (n, D), of length 1."""
        encoder, name = self.task.encoder, self.task.pooling
        canvas, _ = self.task.cache.batch(self.task.train[rows.numpy()])
        views = apply_views(self.views, canvas.to(encoder.device), params)
        return nn.functional.normalize(encoder.encode(views, (name,)).features[name], dim=1)

    def _print_estimate(self, left: int, folder: Path | None) -> None:
        """Time a few real images and say how long the whole will take."""
        rows = torch.from_numpy(self.used[np.linspace(0, len(self.used) - 1, TIMED).round().astype(int)])
        order, params = self._plan(self.epoch)
        self._features(rows[:1], params[rows[:1]])  # the first call is slower
        began = time.monotonic()
        self._features(rows, params[rows])
        each = (time.monotonic() - began) / TIMED
        passes = left / self.pieces
        where = (
            f"Its state is kept in {folder}: the same command continues."
            if folder
            else "Its state is not kept (give --state a folder to be able to continue)."
        )
        console.print(
            f"The released probe passes {self.protocol.probe_epochs} times over {len(order):,} train images; "
            f"{passes:.4g} passes are left, at {each:.3g} s an image about "
            f"{duration_words(each * len(order) * passes)}. {where}",
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
        """Continue from the newest state in ``folder``, if there is one."""
        kept = load_checkpoint(folder) if folder is not None else None
        if kept is not None:
            _, state = kept
            self.epoch, self.piece = state["epoch"], state["piece"]
            for percent, probe in self.probes.items():
                probe.restore(state["probes"][str(percent)])


def duration_words(seconds: float) -> str:
    """Return a duration in one or two units: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextmanager
def _state_folder(task: ProbeTask, protocol: ReleasedProtocol) -> Iterator[Path | None]:
    """Yield the folder of this task's state, locked for one process at a time; None if no state is kept."""
    if protocol.state is None:
        yield None
        return
    folder = protocol.state / f"probe-{_fingerprint(task, protocol)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FineSightError(f"The probe's state cannot be kept in {folder}: {os_reason(error)}.") from error
    waiting = "Another process is training this probe; waiting for it"
    with locked(folder / "lock", on_wait=lambda: console.print(waiting) if task.progress else None):
        yield folder


def _fingerprint(task: ProbeTask, protocol: ReleasedProtocol) -> str:
    """Return a digest of everything the result depends on, so that no state is continued with other data or options."""
    config = task.encoder.config.model_dump(mode="json")
    facts = [task.pooling, protocol.probe_epochs, protocol.seed, config, sorted(task.parts)]
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
