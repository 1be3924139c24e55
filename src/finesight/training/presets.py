"""Presets: what a run is made of where nothing is given, by what there is, and how long it may take.

``gentle`` is for pretrained networks, ``paper`` the paper's recipe. ``auto`` is gentle with pretrained weights; random
ones are trained by the paper's recipe in a batch and a length that suit the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from finesight.errors import FineSightError
from finesight.io.console import console, format_count
from finesight.methods.base import find_method
from finesight.nn.distributed import from_first
from finesight.training.budget import FEWEST_STEPS, Pace, Work, measure, minutes_for, steps_within
from finesight.training.cluster import find_launch, is_main_process
from finesight.training.color_rule import MILD, choose_colors
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.dotted_keys import dotted, flat, nested
from finesight.training.folder import SAMPLE, Folder, can_train, free_memory, look_at
from finesight.training.gentle import GENTLE, choose_settings
from finesight.training.lengths import Choice, Choices, Circumstances, length_settings
from finesight.training.renamed import current_settings
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder
from finesight.training.sizes import describe_sizes, fit_sizes

PRESETS = ("auto", "gentle", "paper")
NAMES = {"gentle": "preset gentle", "paper": "preset paper", "scratch": "the paper's recipe for random weights"}
CPU_MINUTES = 20.0  # unless others, or a length, are given
CHECK_SECONDS = 3.0  # after which no other step is timed, to see whether few minutes can be enough
ENOUGH = 60  # steps: if fewer fit, smaller views and batches are tried
WORTH_LEAVING_OUT = 0.8  # of the images: a run that looks at fewer decodes only those
SMALLER = {  # shares of the views' side and of the batch, in the order they are tried if time is short
    "gentle": ((1.0, 1.0), (0.75, 1.0), (0.75, 0.5), (0.5, 0.5)),
    "scratch": ((1.0, 1.0), (4 / 7, 1.0), (4 / 7, 0.5), (3 / 7, 0.25)),
    "paper": ((1.0, 1.0),),
}


@dataclass(frozen=True)
class Plan:
    """The settings of a run, and why they are so."""

    config: TrainConfig
    reasons: Mapping[str, str] = field(default_factory=dict)  # of settings that were chosen, by their dotted names
    minutes: float | None = None  # None: no time budget
    preset: str = "paper"  # gentle, paper, or scratch: the paper's recipe fitted to the folder
    words: str = ""  # how long it takes, for people
    pace: Pace | None = None  # as measured
    seconds: Mapping[str, float] = field(default_factory=dict)  # estimated: training, closing

    def describe(self) -> dict[str, Any]:
        """Return what is stored beside the run."""
        return {
            "preset": self.preset,
            "minutes": self.minutes,
            "words": self.words,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "measured": None
            if self.pace is None
            else {name: round(value, 5) for name, value in vars(self.pace).items()},
            "reasons": dict(self.reasons),
        }


def shared_plan(make: Callable[[], Plan]) -> Plan:
    """Return the plan that the first process makes; the others build its settings from what it tells them."""
    made: list[Plan] = []

    def settings() -> dict[str, Any]:
        made.append(make())
        return flat(made[0].config)

    told = from_first(settings)
    return made[0] if made else Plan(build_config(told, warn=False))


def plan_training(
    given: dict[str, Any],
    run: RunFolder | None,
    runtime: RuntimeConfig,
    *,
    preset: str = "auto",
    minutes: float | None = None,
    restart: bool = False,
    look: bool = True,
    dry: bool = False,
    strict: bool = True,
) -> Plan:
    """Return the settings of a run: those ``given`` (nested or dotted), and for the others what suits.

    A run that has begun keeps its own settings; new ones are chosen with ``restart`` or without a run. A ``dry`` plan
    is what can be said without training: nothing is timed, and a folder or weights that cannot be read are left to
    training. With ``look`` off not even a sample of the images is opened, unless few minutes are given: then a few
    steps tell whether they can be enough. With ``strict`` off, minutes that are too few get the shortest run that is
    worth it.

    Raises FineSightError if a setting is wrong or the minutes are too few.
    """
    began, dry = time.monotonic(), dry or not look
    if preset not in PRESETS:
        raise FineSightError(f"There is no preset {preset!r}. There are: {', '.join(PRESETS)}.")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise FineSightError(f"--minutes must be a number above 0, not {minutes:g}.")
    settings, notes = current_settings(dotted(nested(given)))
    for note in notes:
        console.print(note, markup=False)
    together = runtime.nodes > 1 or find_launch() is not None  # nothing may be timed on one machine
    if run is not None:
        if not (is_main_process() or together):
            return Plan(run.config())  # the first process has decided and stored it
        if not dry:
            run.refuse_foreign()
        if run.has_begun and not restart:
            return _continued(settings, run, preset, minutes)
    config = build_config(settings)  # whatever is wrong is said before anything is looked at
    pretrained = config.backbone.weights != "random"
    kind = preset if preset != "auto" else "gentle" if pretrained else "scratch"
    trains = find_method(config.method).objective is not None
    gpu = runtime.accelerator != "cpu" and torch.cuda.is_available()
    if together and minutes is not None:
        raise FineSightError("--minutes needs processes that are started by this command: give --epochs instead.")
    asked = minutes is not None
    if minutes is None and not (together or gpu or kind == "paper" or {"epochs", "max_steps"} & set(settings)):
        minutes = CPU_MINUTES
    minutes = minutes if trains else None
    begin = {"views.resolution": Choice(GENTLE["views.resolution"], "")} if kind == "gentle" and trains else {}
    draft = _Draft(settings, {key: choice for key, choice in begin.items() if key not in settings}, kind, minutes)
    if kind == "paper" and minutes is None:
        return draft.plan()
    side = draft.config.views.resolution
    if trains and look:
        console.print("Looking at a few images.")
    folder = look_at(config, side, runtime, decode=look, dry=dry) if trains else None
    processes = runtime.devices * runtime.nodes
    there = Circumstances(None if folder is None else folder.images, pretrained, gpu, processes, free_memory(gpu))
    chosen = choose_settings(settings, there, kind) if kind != "paper" else {}
    draft = _Draft(settings, chosen, kind, minutes)
    draft = draft.also(_colors(draft.chosen, settings, folder, dry=dry))
    config = draft.config
    if trains and (line := describe_sizes(config)):
        console.print(line, markup=False)
    if trains and "backbone.lora" in draft.chosen:
        console.print(f"LoRA: {draft.chosen['backbone.lora'].reason}.", markup=False)
    if folder is None or not can_train(folder, config, processes):
        return draft.plan()  # training says what is wrong
    if minutes is not None and not dry:
        return _within(draft, folder, there, runtime, began, asked=asked, strict=strict and asked)
    if minutes is not None and minutes < CPU_MINUTES and strict and not look:
        _refuse_too_few(draft, folder, side, there, runtime)
    told = "" if minutes is None else "; fewer if the first steps, which are timed when training starts, are too slow"
    return draft.of_length(folder, config.count_steps(folder.images // config.batch_size), None, told)


def _colors(chosen: Choices, given: dict[str, Any], folder: Folder | None, *, dry: bool) -> Choices:
    """Return the strengths of the color changes that suit a sample of the images, of those that are not given."""
    open_ones = chosen.keys() & MILD.keys()
    if not open_ones or folder is None or folder.cache is None:
        return {}
    config = build_config({**{key: choice.value for key, choice in chosen.items()}, **given}, warn=False)
    try:
        encoder = frozen_encoder(config)
    except FineSightError:
        if dry:
            return {}
        raise
    some = np.arange(len(folder.cache))
    found = choose_colors(encoder, folder.cache, some, config.views.resolution, config.seed)
    return {key: Choice(found.settings[key], found.reason) for key in open_ones}


def _continued(given: dict[str, Any], run: RunFolder, preset: str, minutes: float | None) -> Plan:
    """Return the plan of a run that has begun with what is given now on top; entering it refuses what differs."""
    known = json.loads(run.plan.read_text(encoding="utf-8")) if run.plan.exists() else {}
    stored = run.settings()
    begun = known.get("preset", "paper"), known.get("minutes")
    asked = begun[0] if preset == "auto" else preset, begun[1] if minutes is None else minutes
    if asked != begun:
        there, now = (f"{NAMES[name]}, {_budget(budget)}" for name, budget in (begun, asked))
        raise FineSightError(
            f"{run.root} holds a run with another configuration: {there} there, {now} now.\n"
            "Give another --out, the same options to continue it, or --restart to begin anew."
        )
    same = given.get("method", stored.get("method")) == stored.get("method")
    config = build_config({**stored, **given} if same else given)
    return Plan(config, known.get("reasons", {}), begun[1], begun[0], known.get("words", ""))


def _budget(minutes: float | None) -> str:
    return "no time budget" if minutes is None else format_count(minutes, "minute")


@dataclass(frozen=True)
class _Draft:
    """Settings that were given and chosen so far, with image sizes that the network takes."""

    given: Mapping[str, Any]
    chosen: Choices
    kind: str
    minutes: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", fit_sizes(self.given, self.chosen))

    @cached_property
    def config(self) -> TrainConfig:
        return build_config({**{key: choice.value for key, choice in self.chosen.items()}, **self.given}, warn=False)

    def plan(self, **fields: Any) -> Plan:
        reasons = {key: choice.reason for key, choice in self.chosen.items()}
        return Plan(self.config, reasons, self.minutes, self.kind, **fields)

    def also(self, more: Choices) -> _Draft:
        """Return the draft with more choices, none of which replaces what is given."""
        new = {key: choice for key, choice in more.items() if key not in self.given}
        return replace(self, chosen={**self.chosen, **new})

    def smaller(self, side: float, batch: float, processes: int) -> _Draft:
        """Return the draft with these shares of the views' side and of the batch."""
        if (side, batch) == (1.0, 1.0):
            return self
        why, pixels = f"fitted to {_budget(self.minutes)}", self.config.views.resolution
        size = max(2, processes, round(self.config.batch_size * batch) // processes * processes)
        resolution = max(min(pixels, 32), round(pixels * side / 32) * 32)
        return self.also({"views.resolution": Choice(resolution, why), "batch_size": Choice(size, why)})

    def of_length(self, folder: Folder, steps: int, why: str | None, told: str, **fields: Any) -> Plan:
        """Return the plan of a run of so many steps; images that it would never look at are not even decoded.

        ``why`` is the reason for the length, None if it stays as it was chosen; ``told`` ends the words about it.
        """
        objective = find_method(self.config.method).find_objective()
        assert objective is not None
        more: Choices = {}
        part = folder.part_for(steps * self.config.batch_size, self.config)
        if part.listed < WORTH_LEAVING_OUT * folder.listed and self.config.limit_images is None:
            words = f"{format_count(steps, 'step looks', 'steps look')} at no more of the {folder.count:,} images"
            more["limit_images"], folder = Choice(part.listed, words), part
        if why is not None or more:
            known = self.chosen.get("max_steps", Choice(steps, "the epochs that are given"))
            gentle, batch = self.kind == "gentle", self.config.batch_size
            more |= length_settings(steps, folder.images, batch, objective, why or known.reason, gentle=gentle)
        draft, epochs = self.also(more), steps * self.config.batch_size / folder.images
        size = f"{format_count(self.config.batch_size, 'image')} at {self.config.views.resolution} px"
        words = f"{NAMES[self.kind].capitalize()}, {_budget(self.minutes)}: {format_count(steps, 'step')} of {size} "
        words += f"({epochs:.1f} epochs of {format_count(folder.images, 'image')})"
        return draft.plan(words=f"{words}{told}.", **fields)


def _within(
    draft: _Draft,
    folder: Folder,
    there: Circumstances,
    runtime: RuntimeConfig,
    began: float,
    *,
    asked: bool,
    strict: bool,
) -> Plan:
    """Return the plan that ends within its minutes since ``began``; smaller views and batches if time is short.

    If not even that suffices it raises FineSightError if it is ``strict``, else takes the minutes it needs: it has
    these for its budget, unless somebody ``asked`` for another.
    """
    assert draft.minutes is not None
    console.print(f"Timing a few steps, to fit the run into {_budget(draft.minutes)}.")
    now, steps = draft, -1
    for side, share in SMALLER[draft.kind]:
        now, before = draft.smaller(side, share, there.processes), now
        if steps >= 0 and now.config == before.config:
            continue
        work, pace, most = _measured(now, folder, there, runtime)
        used = time.monotonic() - began
        steps = steps_within(60 * draft.minutes - used, work, pace, most)
        if steps >= min(ENOUGH, most):
            break
    least, reason = min(FEWEST_STEPS, most), "as many as fit into"
    if steps < least:
        needed = minutes_for(least, work, pace, used)
        if strict:
            raise _too_few(draft.minutes, folder, least, needed)
        steps, now = least, replace(now, minutes=draft.minutes if asked else needed)
        reason = "the fewest that are worth it, more than fit into" if asked else reason
    why = f"{reason} {_budget(now.minutes)} at {pace.step:.2f} s a step; {most:,} would suit the folder"
    training, closing = work.training(steps, pace), work.closing(pace)
    told = f", {pace.step:.2f} s a step: about {_duration(training)} of training and {_duration(closing)} for the rest"
    seconds = {"training": training, "closing": closing}
    return now.of_length(folder, steps, why if steps < most else None, told, pace=pace, seconds=seconds)


def _refuse_too_few(draft: _Draft, folder: Folder, side: int, there: Circumstances, runtime: RuntimeConfig) -> None:
    """Raise FineSightError if the minutes are too few even for the smallest run, as far as a few steps of it tell.

    That is said in seconds: planning takes longer, and what it will take is a part of the minutes.
    """
    assert draft.minutes is not None
    began, smallest = time.monotonic(), draft.smaller(*SMALLER[draft.kind][-1], there.processes)
    console.print(f"Timing a few steps, to see whether {_budget(draft.minutes)} can be enough.")
    seen = look_at(smallest.config, side, runtime, dry=True, sample_size=0)
    if seen is None:
        return  # training says what is wrong
    folder = replace(folder, decode=seen.decode, cache=seen.cache)
    work, pace, most = _measured(smallest, folder, there, runtime, fewest=1, seconds=CHECK_SECONDS)
    planning = len(SMALLER[draft.kind]) * (time.monotonic() - began) + min(SAMPLE, folder.count) * pace.image
    least = min(FEWEST_STEPS, most)
    if steps_within(60 * draft.minutes - planning, work, pace, most) < least:
        raise _too_few(draft.minutes, folder, least, minutes_for(least, work, pace, planning))


def _too_few(minutes: float, folder: Folder, least: int, needed: float) -> FineSightError:
    return FineSightError(
        f"{format_count(minutes, 'minute is', 'minutes are')} too few for these {folder.count:,} images: "
        f"{format_count(least, 'step')}, the least that is worth it, and the check at the end take about "
        f"{_budget(needed)} here. Give --minutes {needed:g} or more."
    )


def _measured(
    draft: _Draft, folder: Folder, there: Circumstances, runtime: RuntimeConfig, **options: Any
) -> tuple[Work, Pace, int]:
    """Return what there is to do, how long it takes here, and how many steps would suit.

    ``options`` are those of ``measure``.
    """
    assert folder.cache is not None
    config, device = draft.config, torch.device("cuda" if there.gpu else "cpu")
    per_epoch = folder.images // config.batch_size
    options |= {"cache_dir": runtime.cache_dir, "checkpoint_activations": runtime.checkpoint_activations}
    pace = measure(config, folder.cache, device=device, processes=there.processes, **options)
    most = config.count_steps(per_epoch)
    work = Work(
        folder.images, folder.held_out, config.batch_size, -(-most // per_epoch), config.validation.every_n_epochs
    )
    return work, replace(pace, decode=folder.decode), most


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
