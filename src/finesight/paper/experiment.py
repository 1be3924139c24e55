"""The one engine of birds, tables and ablations: train what is missing, score what has no result, write, resume."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from finesight.data.sources import ImageSource
from finesight.evaluation.retrieval import RetrievalScores
from finesight.features.encoder import Encoder
from finesight.io.console import console
from finesight.nn.half_precision import uses_half_precision
from finesight.paper.machine import provenance
from finesight.paper.profiles import Profile
from finesight.paper.runs import comparable_settings, is_begun, load_or_train
from finesight.paper.store import ResultStore, require_same_settings
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.run_folder import RunFolder

Write = Callable[[str, Mapping[str, Any], RetrievalScores | None], None]  # name of the result, result, its queries


class Run(NamedTuple):
    """A training with a seed."""

    training: str
    seed: int


Plan = dict[Run, list[str]]  # the runs to train or load, and the names of the results to make of each


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """What to train and score, on what data, and where runs and results go. A subclass says how to score."""

    command: str  # its name after ``finesight bench``
    profile: Profile
    data: Path
    runs: Path
    store: ResultStore
    runtime: RuntimeConfig
    report: bool = True  # whether a training draws its report
    store_option: ClassVar[str]  # of the command line
    runs_option: ClassVar[str]

    @property
    @abstractmethod
    def results(self) -> Mapping[str, str]:
        """The name of every result a seed has, and the training it is of."""

    @abstractmethod
    def config(self, training: str, seed: int) -> TrainConfig:
        """Return the configuration of a training; raise a ``FineSightError`` if a setting is wrong."""

    @abstractmethod
    def source(self) -> ImageSource:
        """Return the images to score on."""

    @abstractmethod
    def score(self, run: Run, names: Sequence[str], source: ImageSource, write: Write) -> None:
        """Make the results ``names`` of a run and hand each to ``write`` as soon as it is known."""

    @abstractmethod
    def is_complete(self, name: str, seed: int, result: Mapping[str, Any]) -> bool:
        """Tell whether a stored result has all that is wanted of it."""

    def settings(self, training: str) -> dict[str, Any]:
        """Return the settings that a result must have been made with."""
        return comparable_settings(self.config(training, 0))

    def run(self, training: str, seed: int) -> Run | None:
        """Return the run that gives the network of a training; None for a seed that it does not have."""
        return Run(training, seed)

    def folder(self, run: Run) -> RunFolder:
        return RunFolder(self.runs / f"{run.training}-seed{run.seed}")

    @property
    def half(self) -> bool:
        """Whether networks are trained and images embedded in bfloat16 on the CPU."""
        return uses_half_precision(self.runtime.precision, self.runtime.accelerator)

    def encoder(self, run: Run) -> Encoder:
        """Return the trained encoder; train it first, or go on where it was cut off."""
        encoder = self.load(run)
        if self.half:
            encoder.use_half_precision()
        return encoder

    def load(self, run: Run) -> Encoder:
        """Return the trained encoder in full precision, as ``encoder`` does."""
        return load_or_train(self.folder(run), self.config(*run), self.runtime, report=self.report)

    def missing(self, seeds: Sequence[int]) -> Plan:
        """Return every result that is not stored yet, by the run that gives it.

        Raises a ``FineSightError`` if a stored result is damaged, or it or a run was made with other settings.
        """
        stored, plan = self.store.read(), Plan()
        for seed in seeds:
            for name, training in self.results.items():
                if (run := self.run(training, seed)) is None:
                    continue
                result = stored.get(name, {}).get(seed)
                if result is not None:
                    what = f"The result {self.store.file(name, seed)}"
                    advice = f"Delete it, or give another {self.store_option}."
                    require_same_settings(what, result["settings"], self.settings(training), advice)
                if result is None or not self.is_complete(name, seed, result):
                    plan.setdefault(run, []).append(name)
        for run in plan:
            if is_begun(folder := self.folder(run)):
                before, now = (comparable_settings(config) for config in (folder.config(), self.config(*run)))
                advice = f"Delete it to train again, or give another {self.runs_option}."
                require_same_settings(folder.root, before, now, advice)
        return plan

    def make(self, plan: Plan) -> None:
        """Train and score all of ``plan``; each result is written as soon as it is known."""
        if not plan:
            return
        source, made = self.source(), provenance()  # of the code now: files may change while it runs
        for run, names in plan.items():
            rows = "" if names == [run.training] else f": {', '.join(names)}"
            console.rule(f"{self.command}: {run.training}, seed {run.seed}{rows}")

            def write(
                name: str, result: Mapping[str, Any], queries: RetrievalScores | None, seed: int = run.seed
            ) -> None:
                self.store.write(name, seed, {**result, "date": time.strftime("%Y-%m-%d"), **made}, queries)

            self.score(run, names, source, write)


def branch_is_detached(config: TrainConfig) -> bool:
    """Tell whether nothing of LCR's branch reaches the encoder, so that other branches can be trained beside it."""
    rationale = config.rationale
    if rationale is None or config.optim.clip_grad_norm is not None:  # all gradients share a norm
        return False
    return rationale.encoder_gradient == 0 and rationale.detach_target
