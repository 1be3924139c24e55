"""Batch size and length of a training that suit the number of images, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from finesight.io.console import format_count
from finesight.methods.base import Objective

STEPS_AN_EPOCH = 8  # at least, in small folders, unless batches would become too small
SMALLEST_BATCH = 8
FEWEST_STEPS, MOST_STEPS = 70, 200  # of a gentle run: beyond that the features of cars become worse again
PAUSE = 0.25  # of a gentle run: the backbone waits while the new head learns
GIGABYTES_AN_IMAGE = 0.3  # that training needs at 224 px, about


class Choice(NamedTuple):
    """A value that was chosen for a setting, and why."""

    value: Any
    reason: str


Choices = dict[str, Choice]


@dataclass(frozen=True)
class Circumstances:
    """What there is to train with."""

    images: int | None  # that are trained on; None: not known
    pretrained: bool
    gpu: bool = False
    processes: int = 1
    memory: float | None = None  # free gigabytes; None: not known


def fit_batch(there: Circumstances, most: int, resolution: int) -> Choice:
    """Return a batch size of at most ``most`` that leaves several steps an epoch and few images out of one."""
    images = there.images or 0
    why = f"enough steps an epoch with {format_count(images, 'image')}"
    if there.memory is not None:
        room = int(there.memory / 2 / (GIGABYTES_AN_IMAGE * (resolution / 224) ** 2))
        if room < most:
            most, why = max(SMALLEST_BATCH, room), f"{there.memory:.1f} GB of memory are free"
    size = max(SMALLEST_BATCH, images // STEPS_AN_EPOCH)
    if size >= most:
        size = most
    else:
        size = min(size, max(2, images))
        largest = min(most, images, round(1.25 * size))
        sizes = reversed(range(max(2, round(0.75 * size)), max(2, largest) + 1))
        size = min(sizes, key=lambda size: images % size)
        left_out = f"{images % size} of {format_count(images, 'image')} left out of one"
        why = f"{format_count(images // size, 'step')} an epoch, {left_out}"
    return Choice(max(2, there.processes * max(1, size // there.processes)), why)


def suitable_steps(images: int) -> int:
    """Return the length of gentle training: it grows with the square root, up to 200 steps from 1,800 images on."""
    return min(MOST_STEPS, max(FEWEST_STEPS, round(4.75 * math.sqrt(images))))


def length_settings(
    steps: int, images: int, batch: int, objective: type[Objective], why: str, *, gentle: bool
) -> Choices:
    """Return settings of a run of so many steps, those that are counted in epochs included."""
    epochs = steps / max(1, images // batch)
    return {
        "max_steps": Choice(steps, why),
        "epochs": Choice(max(1, math.ceil(epochs)), "max_steps decides"),
        **schedule_settings(epochs, objective, gentle=gentle),
    }


def schedule_settings(epochs: float, objective: type[Objective], *, gentle: bool) -> Choices:
    """Return the schedule of a short run, a part of an epoch perhaps."""
    chosen = {"optim.cosine": Choice("step", "the rate falls smoothly, however few epochs there are")}
    if gentle:
        words = "a quarter of the run: the backbone waits while the new head learns"
        chosen["optim.freeze_epochs"] = Choice(round(PAUSE * epochs, 4), words)
    if "optim.warmup_epochs" in objective.defaults(2, 1):
        chosen["optim.warmup_epochs"] = Choice(round(min(10.0, epochs / 10), 4), "a tenth of the run")
    own = objective.Config.model_fields.get("freeze_epochs")
    if own is not None and own.default > epochs / 10:
        chosen["objective.freeze_epochs"] = Choice(round(epochs / 10, 4), "a tenth of the run")
    return chosen
