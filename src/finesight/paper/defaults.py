"""The experiment of ``bench defaults``: what ``finesight train`` leaves when it is given no setting but a budget.

Every result is made by a process of its own: a training is the command that a user types, and its encoder is scored on
the test images beside the frozen network under each of its poolings.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from finesight import api
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError, Interrupted
from finesight.features.encoder import Encoder
from finesight.io.atomic import write_atomic
from finesight.io.console import console
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.defaults_scores import Scored, TestImages
from finesight.paper.machine import Usage, provenance
from finesight.paper.processes import run_commands
from finesight.paper.runs import comparable_settings, is_finished, record_usage, training_usage
from finesight.paper.store import read_json, require_same_settings, write_queries
from finesight.training.config import RuntimeConfig
from finesight.training.metrics_log import read_metrics
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import FROZEN_POOLINGS

DOMAINS = {"birds": "CUB-200-2011", "cars": "Stanford Cars", "drawn": "drawn look-alikes"}
SEEDS = (0, 1, 2)
MINUTES = 20.0
RESOLUTION = 224
POOLINGS = FROZEN_POOLINGS  # all that need no training
DRAWN = LookalikesConfig(size=128)

# Seconds instead of minutes, for a test. The numbers say nothing.
QUICK_CLASSES = 4
QUICK_DRAWN = LookalikesConfig(species=QUICK_CLASSES, train_per_species=6, test_per_species=4, size=40)
QUICK_BACKBONE = BackboneConfig(name="test_resnet", weights="random", output_stride=8)
QUICK_RESOLUTION = 32
QUICK_OPTIONS = (
    *("--backbone", "test_resnet", "--weights", "random", "--output-stride", "8", "--resolution", "32"),
    *("--batch-size", "8", "--epochs", "1", "--projections", "4", "--limit-classes", str(QUICK_CLASSES)),
)


class Task(NamedTuple):
    """One result: of a seed, or of the frozen network."""

    domain: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """What its file is called."""
        return "frozen" if self.seed is None else f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.domain}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the task of ``birds:frozen`` or ``birds:seed-0``."""
        domain, _, name = text.partition(":")
        seed = name.removeprefix("seed-")
        if domain not in DOMAINS or (name != "frozen" and not seed.isdecimal()):
            raise FineSightError(f"There is no task {text!r}: it is birds:frozen, birds:seed-0 or the like.")
        return cls(domain, None if name == "frozen" else int(seed))


@dataclass(frozen=True, kw_only=True)
class DefaultsBench:
    """What to train on, for how long, and where results and runs go."""

    data: Mapping[str, str]  # domain -> folder; drawn images are made
    weights: str
    results: Path
    work: Path  # runs, features and drawn images
    runtime: RuntimeConfig
    minutes: float = MINUTES
    threads: int = 1  # of each process
    jobs: int = 1  # processes at a time
    quick: bool = False

    def file(self, task: Task) -> Path:
        return self.results / task.domain / f"{task.name}.json"

    def run(self, task: Task) -> RunFolder:
        return RunFolder(self.work / task.domain / task.name)

    def source(self, domain: str) -> ImageSource:
        """Return the images of a domain; those of ``drawn`` are made first.

        Raises a ``FineSightError`` if its folder was not given, or has no labels or no split.
        """
        if domain == "drawn":
            source = make_lookalikes(self.work / "data" / "drawn", QUICK_DRAWN if self.quick else DRAWN)
        elif domain in self.data:
            source = open_source(self.data[domain])
        else:
            raise FineSightError(f"Give --data-{domain} the folder of {DOMAINS[domain]}, or leave {domain} out.")
        if source.labels is None or source.splits is None:
            raise FineSightError(f"The bench needs labeled train and test images; this is {source.describe()}")
        return source.first_classes(min(QUICK_CLASSES, len(source.classes))) if self.quick else source

    def missing(self, domains: Iterable[str], seeds: Iterable[int]) -> list[Task]:
        """Return every result that is not there yet, the frozen networks first, then seed by seed.

        Raises a ``FineSightError`` if a stored result is damaged or was made with other settings.
        """
        chosen = list(domains)
        tasks = [Task(domain) for domain in chosen] + [Task(domain, seed) for seed in seeds for domain in chosen]
        sources, missing = {domain: self.source(domain) for domain in chosen}, []
        for task in tasks:
            file = self.file(task)
            if not file.exists():
                missing.append(task)
                continue
            now = self.setting(task, sources[task.domain])
            advice = "Delete it, or give another --results."
            require_same_settings(f"The result {file}", read_json(file).get("setting", {}), now, advice)
        return missing

    def make(self, tasks: Sequence[Task]) -> None:
        """Make these results, ``jobs`` at a time."""
        words = {"--weights": self.weights, "--minutes": self.minutes, "--results": self.results, "--work": self.work}
        words |= {"--threads": self.threads, "--jobs": self.jobs}
        words |= {f"--data-{domain}": folder for domain, folder in self.data.items()}
        words |= {"--cache-dir": self.runtime.cache_dir, "--workers": self.runtime.workers}
        given = [word for option, value in words.items() if value is not None for word in (option, str(value))]
        given += ["--quick"] * self.quick + ["--quiet"] * (self.jobs > 1 or not self.runtime.progress)
        commands = [["bench", "defaults", "--task", str(task), *given] for task in tasks]
        variables = {"OMP_NUM_THREADS": str(self.threads)}
        failed = "Not every result could be made; the messages are above. The same command continues."
        run_commands(commands, failed, jobs=self.jobs, variables=variables)

    def make_one(self, task: Task) -> None:
        """Train if need be, score on the test images, and write the result."""
        made = provenance()  # of the code now: files may change while it runs
        source = self.source(task.domain)
        console.print(f"{task} begins at {time.strftime('%H:%M')}.")
        encoder, facts = (self.frozen(), {}) if task.seed is None else self._train(task)
        images = TestImages.open(source, encoder.config.framing, self.work / "features", self.runtime)
        poolings = list(dict.fromkeys((*POOLINGS, encoder.config.pooling) if task.seed is not None else POOLINGS))
        scored = images.score(encoder, poolings)
        if task.seed is not None and (trained := self.run(task).trained_encoder).exists():
            facts["not_kept"] = _not_kept(Encoder.load(trained), images)
        result = {
            "domain": task.domain,
            "dataset": DOMAINS[task.domain],
            "seed": task.seed,
            "setting": self.setting(task, source),
            **facts,
            "pooling": None if task.seed is None else encoder.config.pooling,
            "resolution": encoder.config.resolution,
            "retrieval": {name: one.summary() for name, one in scored.items()},
            "threads": self.threads,
            "jobs": self.jobs,
            "command": self._command(task),
            "date": time.strftime("%Y-%m-%d"),
            **made,
        }
        for name in POOLINGS if task.seed is None else (encoder.config.pooling,):
            write_queries(queries_file(self.results, task, name), scored[name])
        write_atomic(self.file(task), json.dumps(result, indent=2) + "\n")
        best = encoder.config.pooling if task.seed is not None else max(scored, key=lambda n: scored[n].score("mAP"))
        found = ", ".join(f"{key} {scored[best].score(key):.2f}" for key in ("rank1", "rank5", "mAP"))
        console.print(f"{task}, {best}: {found}")

    def setting(self, task: Task, source: ImageSource) -> dict[str, Any]:
        """Return what a result must have been made with; folders and files by their names."""
        folder = "drawn" if task.domain == "drawn" else Path(self.data[task.domain]).absolute().name
        counts = {f"{split}_images": len(source.split(split)) for split in ("train", "test")}
        classes = len(set(source.labels.tolist())) if source.labels is not None else 0
        network = "test_resnet" if self.quick else Path(self.weights).name
        setting = {"data": folder, "classes": classes, **counts, "weights": network}
        return setting if task.seed is None else {**setting, "minutes": self.minutes}

    def frozen(self) -> Encoder:
        """Return the network that nothing is trained of."""
        if not self.quick:
            return api.frozen(BackboneConfig(weights=self.weights), RESOLUTION)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return api.frozen(QUICK_BACKBONE, QUICK_RESOLUTION)

    def _train(self, task: Task) -> tuple[Encoder, dict[str, Any]]:
        """Run the command of a user, or go on where it was cut off; return the encoder it leaves and what it did."""
        run, began = self.run(task), time.monotonic()
        if not (is_finished(run) and run.report.exists()):  # the report comes last, after the verdict
            options = {"--out": run.root, "--cache-dir": self.runtime.cache_dir, "--workers": self.runtime.workers}
            places = [word for option, value in options.items() if value is not None for word in (option, str(value))]
            data = self.work / "data" / "drawn" if task.domain == "drawn" else self.data[task.domain]
            words = [*self._train_words(task, str(data), self.weights), *places]
            try:
                run_commands(
                    [[*words, *([] if self.runtime.progress else ["--quiet"])]],
                    f"Training into {run.root} has failed; its message is above.",
                )
            except Interrupted:
                record_usage(run, Usage(time.monotonic() - began))
                raise
            record_usage(run, Usage(time.monotonic() - began))
        return Encoder.load(run.root), {
            "train": shlex.join(["finesight", *self._train_words(task, *self._names(task.domain)), "--out", "RUN"]),
            **run_facts(run),
        }

    def _train_words(self, task: Task, data: str, weights: str) -> list[str]:
        network = QUICK_OPTIONS if self.quick else ("--weights", weights, "--minutes", f"{self.minutes:g}")
        return ["train", "--data", data, *network, "--seed", str(task.seed)]

    def _names(self, domain: str) -> tuple[str, str]:
        """Return data and weights by the last part of their paths, as they lie elsewhere on other machines."""
        folder = "drawn" if domain == "drawn" else Path(self.data[domain]).absolute().name
        return folder, Path(self.weights).name

    def _command(self, task: Task) -> str:
        """Return the command that makes a result again."""
        data, weights = self._names(task.domain)
        words = ["finesight", "bench", "defaults", "--domains", task.domain, "--minutes", f"{self.minutes:g}"]
        words += [] if task.domain == "drawn" else [f"--data-{task.domain}", data]
        words += ["--weights", weights, "--jobs", str(self.jobs), "--threads", str(self.threads)]
        return shlex.join([*words, "--seeds", str(task.seed or 0), *["--quick"] * self.quick])


def queries_file(results: Path, task: Task, pooling: str) -> Path:
    """Return where it is written what each query gave: under each pooling of the frozen network, else under its own."""
    name = f"frozen-{pooling}" if task.seed is None else task.name
    return results / task.domain / "queries" / f"{name}.npz"


def run_facts(run: RunFolder) -> dict[str, Any]:
    """Return what a training decided and why, what it took and what it said of itself."""
    config, usage = run.config(), training_usage(run)
    steps = [int(row["step"]) + 1 for row in read_metrics(run.metrics_file)]
    return {
        "plan": {
            "steps": config.max_steps or max(steps, default=0),
            "batch_size": config.batch_size,
            "resolution": config.views.resolution,
            "colors": {name: getattr(config.views, name) for name in ("hue", "saturation", "gray")},
            **_stored(run, run.plan),
        },
        "settings": comparable_settings(config),
        "minutes": None if usage is None else round(usage.seconds / 60, 2),  # of the whole command, report included
        "load": [round(load, 1) for load in os.getloadavg()],  # of the machine, when it was done
        "verdict": _stored(run, run.verdict) or None,
    }


def _stored(run: RunFolder, file: Path) -> dict[str, Any]:
    """Return a JSON file of the run without the places of run and data, which are others elsewhere."""
    if not file.exists():
        return {}
    data = Path(run.config().data)
    text = json.dumps(read_json(file), ensure_ascii=False)
    for place, name in ((data, data.name), (run.root.absolute(), "RUN"), (run.root, "RUN")):
        text = text.replace(json.dumps(str(place), ensure_ascii=False)[1:-1], name)
    content: dict[str, Any] = json.loads(text)
    return content


def _not_kept(encoder: Encoder, images: TestImages) -> dict[str, Any]:
    """Score what was trained where the run keeps the frozen network instead."""
    scored: Scored = images.score(encoder, (encoder.config.pooling,))
    return {"pooling": encoder.config.pooling, "retrieval": {name: one.summary() for name, one in scored.items()}}
