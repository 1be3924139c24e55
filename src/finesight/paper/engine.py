"""Train and score the systems of a bench on one dataset by one profile, seed by seed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finesight import api
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.evaluation.evaluate import Evaluation, evaluate_poolings
from finesight.features.encoder import Encoder
from finesight.io.console import console
from finesight.methods.base import DatasetInfo
from finesight.methods.moco import queue_size
from finesight.paper.cost import Cost, Work, estimate, refuse_what_does_not_fit, together
from finesight.paper.machine import Meter, Usage, commit, machine
from finesight.paper.networks import changed, finished, health, settings, spent, trained
from finesight.paper.profiles import Profile
from finesight.paper.results import ResultFiles
from finesight.paper.systems import NETWORKS, SYSTEMS, System, chosen, is_frozen
from finesight.paper.table_datasets import CUB, PaperDataset, opened
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.run_folder import RunFolder
from finesight.training.train import hold_out
from finesight.version import __version__

FROZEN_SEED = 0  # a frozen network has one row, not one a seed


@dataclass(frozen=True)
class Bench:
    """What to run, on what, and where it goes."""

    profile: Profile
    data: Path
    weights: str
    runs: Path
    results: ResultFiles
    runtime: RuntimeConfig
    dataset: PaperDataset = CUB
    verb: str = "birds"  # the command that makes its rows

    def config(self, network: str, seed: int) -> TrainConfig:
        """Of a network's training; a frozen one sees the images as MoCo v2 does."""
        name = "moco-v2" if is_frozen(network) else network
        return self.profile.config(name, data=str(self.data), weights=self.weights, seed=seed)

    def settings(self, network: str) -> dict[str, Any]:
        """What the rows of a network depend on but the seed."""
        config = self.config(network, 0)
        known = settings(config) | {"data": self.dataset.folder}
        if not is_frozen(network):
            return known
        seen = {key: value for key, value in known.items() if key.startswith("backbone.") or key == "limit_classes"}
        return seen | {"resolution": config.encoder_resolution}

    def training(self, network: str) -> str:
        """The network whose training gives this one. A branch of LCR's that nothing of reaches the encoder leaves it
        that of MoCo v2 to the last bit: then one training serves both."""
        return "lcr" if network == "moco-v2" and self._branch_stands_apart() else network

    def run(self, network: str, seed: int) -> RunFolder:
        """Where the training of a network lies."""
        return RunFolder(self.runs / self.profile.name / f"{self.training(network)}-seed{seed}")

    def command(self, system: str, seed: int) -> str:
        """What makes this row again; paths by their last part, as they differ from machine to machine."""
        weights = Path(self.weights).name
        words = ["finesight", "bench", self.verb, "--profile", self.profile.name, "--methods", system]
        return shlex.join([*words, "--seeds", str(seed), "--data", self.data.absolute().name, "--weights", weights])

    def source(self) -> ImageSource:
        """All images of the dataset, or an error that says what was found in its place."""
        return opened(self.dataset, self.data)

    def _branch_stands_apart(self) -> bool:
        lcr, moco = self.config("lcr", 0), self.config("moco-v2", 0)
        rationale = lcr.rationale
        if rationale is None or lcr.model_copy(update={"method": moco.method, "rationale": None}) != moco:
            return False
        silent = rationale.encoder_gradient == 0 and rationale.detach_target and rationale.lam == 1
        return silent and lcr.optim.clip_grad_norm is None  # a gradient's length is that of all its parts


@dataclass(frozen=True)
class Plan:
    """What is left to do: the missing rows of each training (or frozen network) and seed."""

    rows: dict[tuple[str, int], dict[str, System]]

    def trainings(self, bench: Bench) -> list[tuple[str, int]]:
        """Those that have no finished run yet."""
        return [key for key in self.rows if not is_frozen(key[0]) and not finished(bench.run(*key))]

    def by_cost(self) -> dict[str, Plan]:
        """In parts that cost alike, by the network that speaks for each: LCR's for MoCo v2's and its own."""
        parts: dict[str, dict[tuple[str, int], dict[str, System]]] = {}
        for (network, seed), systems in self.rows.items():
            parts.setdefault("lcr" if network in NETWORKS else network, {})[network, seed] = systems
        return {network: Plan(rows) for network, rows in parts.items()}

    def work(self, bench: Bench) -> Work:
        rows = self.rows.values()
        return Work(
            trainings=len(self.trainings(bench)),
            networks=len(rows),
            probes=sum(len(_probed(bench, systems)) for systems in rows),
            rows=max((len(systems) for systems in rows), default=0),
        )


def plan(
    bench: Bench,
    systems: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    among: Mapping[str, System] = SYSTEMS,
) -> Plan:
    """Every row without a result. A frozen network has no seed: it is scored once, with seed 0 and as seed 0."""
    found = bench.results.read()
    rows: dict[tuple[str, int], dict[str, System]] = {}
    for seed in bench.profile.seeds if seeds is None else seeds:
        for name, system in chosen(systems, among).items():
            if is_frozen(system.network) and seed != FROZEN_SEED:
                continue
            result = found.get(name, {}).get(seed)
            if result is not None:
                _refuse_stale(bench, system, bench.results.file(name, seed), result)
            if result is None or not bench.results.queries(name, seed).exists():
                rows.setdefault((bench.training(system.network), seed), {})[name] = system
    return Plan(rows)


def dry_run(bench: Bench, todo: Plan) -> Cost:
    """Time, memory and disk, measured on small steps of the real networks; refuses what cannot fit."""
    source, classes = bench.source(), bench.profile.classes
    source = source if classes is None else source.first_classes(classes)
    costs = {}
    for network, part in todo.by_cost().items():
        costs[network] = estimate(bench.config(network, 0), source, part.work(bench), bench.runtime.devices)
        if len(todo.by_cost()) > 1:
            console.print(f"{network}: {costs[network].words()}")
    cost = together(list(costs.values()))
    console.print(cost.words())
    refuse_what_does_not_fit(cost, bench.runs, bench.runtime)
    return cost


def run(bench: Bench, todo: Plan) -> None:
    """Train and score what is missing; each row is written as soon as it is known."""
    source = bench.source()
    made = {"commit": commit(), "version": __version__, "machine": machine()}  # now: the source may change meanwhile
    for (network, seed), rows in todo.rows.items():
        console.rule(f"{network}, seed {seed}: {', '.join(rows)}")
        _run_network(bench, network, seed, rows, source, made)


def _run_network(
    bench: Bench, network: str, seed: int, rows: dict[str, System], source: ImageSource, made: dict[str, Any]
) -> None:
    encoder, used = _network(bench, network, seed)
    meter = Meter()

    def write(evaluation: Evaluation) -> None:
        cost = _cost(used, meter.usage()) | {"date": time.strftime("%Y-%m-%d")}
        for name, system in rows.items():
            if system.pooling == evaluation.pooling:
                result = _result(bench, name, system, seed, evaluation) | cost | made
                bench.results.write(name, seed, result, evaluation.queries)

    _evaluate(bench, source, encoder, rows, write)


def _refuse_stale(bench: Bench, system: System, file: Path, result: dict[str, Any]) -> None:
    """A table of which some rows were made with other settings would compare the settings."""
    if differences := changed(result["settings"], bench.settings(system.network)):
        lines = "\n".join(f"  {line}" for line in differences)
        raise FineSightError(f"The result {file} has other settings:\n{lines}\nDelete it, or give another --results.")


def _network(bench: Bench, network: str, seed: int) -> tuple[Encoder, Usage | None]:
    config = bench.config(network, seed)
    if is_frozen(network):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # for random weights, that they are the same every time
            return api.frozen(config.backbone, config.encoder_resolution), Usage()
    run = bench.run(network, seed)
    return trained(run, config, bench.runtime), spent(run)


def _evaluate(
    bench: Bench,
    source: ImageSource,
    encoder: Encoder,
    rows: dict[str, System],
    on_result: Callable[[Evaluation], None],
) -> None:
    """One pass over the images for all rows of a network."""
    evaluate_poolings(
        encoder,
        source,
        list(dict.fromkeys(system.pooling for system in rows.values())),
        probed=_probed(bench, rows),
        limit_classes=bench.profile.classes,
        cache_dir=bench.runtime.cache_dir,
        workers=bench.runtime.workers,
        progress=bench.runtime.progress,
        on_result=on_result,
    )


def _probed(bench: Bench, rows: dict[str, System]) -> list[str]:
    """The poolings to fit linear probes to; rows that share one share its probes."""
    return list(dict.fromkeys(system.pooling for name, system in rows.items() if bench.profile.probes(name, system)))


def _result(bench: Bench, name: str, system: System, seed: int, evaluation: Evaluation) -> dict[str, Any]:
    config, scores = bench.config(system.network, seed), evaluation.scores
    images = {split: scores["setting"][f"{split}_images"] for split in ("train", "test")}
    return {
        "dataset": bench.dataset.name,
        "classes": bench.profile.classes or len(evaluation.cache.source.classes),
        "method": name,
        "network": system.network,
        "trained_as": bench.training(system.network),
        "pooling": system.pooling,
        "seed": seed,
        "profile": bench.profile.facts(config, _queue(config, images["train"])),
        "settings": bench.settings(system.network),
        "retrieval": scores["retrieval"],
        "linear": scores.get("linear"),
        "localization": scores.get("localization"),
        "images": images,
        "health": None if is_frozen(system.network) else health(bench.run(system.network, seed)),
        "command": bench.command(name, seed),
    }


def _queue(config: TrainConfig, images: int) -> int | None:
    """None of an objective that has none."""
    size = getattr(config.objective, "queue", None)
    data = DatasetInfo(len(hold_out(images, config)[0]), config.batch_size)
    return None if size is None else queue_size(size, data)


def _cost(trained: Usage | None, scored: Usage) -> dict[str, Any]:
    """Seconds are of training, None where it was not seen; those of evaluation are until the row was known."""
    return {
        "seconds": None if trained is None else round(trained.seconds, 1),
        "evaluation_seconds": round(scored.seconds, 1),
        "peak_memory_mb": round(max((trained or Usage()).peak_memory_mb, scored.peak_memory_mb)),
    }
