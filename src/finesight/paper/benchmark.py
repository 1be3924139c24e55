"""The experiment of ``bench birds`` and of the paper's tables: rows on one dataset by one profile."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from finesight import api
from finesight.data.sources import ImageSource
from finesight.evaluation.evaluate import Evaluation, evaluate_poolings
from finesight.features.encoder import Encoder
from finesight.io.console import console
from finesight.methods.base import DatasetInfo
from finesight.methods.moco import queue_size
from finesight.paper.cost import Cost, Work, check_fits, estimate, total_cost
from finesight.paper.datasets import CUB, PaperDataset, open_dataset
from finesight.paper.experiment import Experiment, Plan, Run, Write, branch_is_detached
from finesight.paper.machine import Meter, Usage
from finesight.paper.rows import BIRD_ROWS, TRAININGS, WITH_RATIONALE, Row, Training
from finesight.paper.runs import embedding_health, is_finished, training_usage
from finesight.paper.selection import is_frozen
from finesight.training.color_rule import MILD, ColorChoice, choose_colors
from finesight.training.config import TrainConfig
from finesight.training.folder import look_at
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder
from finesight.training.train_images import hold_out

FROZEN_SEED = 0  # the only seed of a training that nothing is trained for
ALIKE = {row.training for row in BIRD_ROWS.values()}  # trainings that cost what LCR does


@dataclass(frozen=True, kw_only=True)
class Benchmark(Experiment):
    """Rows on one of the paper's datasets; every row and seed has a result of its own."""

    store_option: ClassVar[str] = "--results"
    runs_option: ClassVar[str] = "--runs"
    weights: str
    dataset: PaperDataset = CUB
    rows: Mapping[str, Row] = field(default_factory=lambda: BIRD_ROWS)
    trainings: Mapping[str, Training] = field(default_factory=lambda: TRAININGS)

    @property
    def results(self) -> dict[str, str]:
        return {name: row.training for name, row in self.rows.items()}

    def config(self, training: str, seed: int) -> TrainConfig:
        """Return the configuration of a training; a frozen training sees the images as MoCo v2 does."""
        colors = {} if self.colors is None else self.colors.settings
        return self._config(training, seed, {"backbone.weights": self.weights, **colors})

    def _config(self, training: str, seed: int, given: Mapping[str, Any]) -> TrainConfig:
        known = self.trainings.get(training) or TRAININGS.get(training) or Training(training)
        entry = Training("moco-v2") if is_frozen(training) else known
        return self.profile.config(entry, data=self.data, seed=seed, given=given)

    @cached_property
    def colors(self) -> ColorChoice | None:
        """How strongly views change the colors: by the rule of ``finesight train``, which looks at train images alone.

        None: as the profile says. The profiles for a CPU have what was chosen for CUB.
        """
        if self.dataset.kind == CUB.kind or not MILD.keys() <= self.profile.settings.keys():
            return None
        config = self._config("moco-v2", 0, {"backbone.weights": self.weights})
        folder, side = look_at(config, config.views.resolution, self.runtime), config.views.resolution
        assert folder is not None
        assert folder.cache is not None
        found = choose_colors(frozen_encoder(config), folder.cache, np.arange(len(folder.cache)), side)
        console.print(f"{self.dataset.name}: {found.reason}")
        return found

    def settings(self, training: str) -> dict[str, Any]:
        known = super().settings(training) | {"data": self.dataset.folder}
        if not is_frozen(training):
            return known
        used = {key: value for key, value in known.items() if key.startswith("backbone.") or key == "limit_classes"}
        return used | {"resolution": self.config(training, 0).encoder_resolution}

    def run(self, training: str, seed: int) -> Run | None:
        """Return the run that gives the network of a training.

        Where nothing of the rationale's branch reaches the encoder, that encoder is the objective's to the last bit:
        one training gives both. A frozen training is scored once, as seed 0.
        """
        if is_frozen(training) and seed != FROZEN_SEED:
            return None
        if self.config(training, seed).saliency.source == "boxes" and self.source().boxes is None:
            return None  # an upper bound that these images have no annotations for
        more = WITH_RATIONALE.get(training)
        return Run(training if more is None or not self._trains_both(more, training) else more, seed)

    def folder(self, run: Run) -> RunFolder:
        return RunFolder(self.runs / self.profile.name / f"{run.training}-seed{run.seed}")

    def load(self, run: Run) -> Encoder:
        if not is_frozen(run.training):
            return super().load(run)
        config = self.config(*run)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(run.seed)  # random weights are the same every time
            return api.frozen(config.backbone, config.encoder_resolution)

    def source(self) -> ImageSource:
        return open_dataset(self.dataset, self.data)

    def limited_source(self) -> ImageSource:
        """Return the images of the profile's classes."""
        source, classes = self.source(), self.profile.classes
        return source if classes is None else source.first_classes(classes)

    def is_complete(self, name: str, seed: int, result: Mapping[str, Any]) -> bool:
        return self.store.queries(name, seed).exists()

    def score(self, run: Run, names: Sequence[str], source: ImageSource, write: Write) -> None:
        """Score all rows of a run in one pass over the images."""
        encoder, trained = self.encoder(run), Usage() if is_frozen(run.training) else training_usage(self.folder(run))
        meter = Meter()

        def write_rows(evaluation: Evaluation) -> None:
            cost = _cost(trained, meter.usage())
            for name in names:
                if self.rows[name].pooling == evaluation.pooling:
                    write(name, self._result(name, run, evaluation) | cost, evaluation.queries)

        evaluate_poolings(
            encoder,
            source,
            list(dict.fromkeys(self.rows[name].pooling for name in names)),
            probed=self._probed(names),
            limit_classes=self.profile.classes,
            cache_dir=self.runtime.cache_dir,
            workers=self.runtime.workers,
            progress=self.runtime.progress,
            on_result=write_rows,
        )

    def work(self, plan: Plan) -> Work:
        """Count what ``plan`` has to train, embed and probe."""
        untrained = [run for run in plan if not is_frozen(run.training) and not is_finished(self.folder(run))]
        return Work(
            trainings=len(untrained),
            networks=len(plan),
            probes=sum(len(self._probed(names)) for names in plan.values()),
            rows=max((len(names) for names in plan.values()), default=0),
        )

    def estimate(self, plan: Plan) -> Cost:
        """Measure small steps of the real networks, print what ``plan`` will take, and refuse what cannot fit.

        Runs that cost alike are one line, the cheapest first; ``plan`` is put into that order, seed by seed.
        """
        source, costs = self.limited_source(), {}
        parts: dict[str, Plan] = {}
        for run, names in plan.items():
            parts.setdefault(_alike(run), {})[run] = names
        for training, part in parts.items():
            config, work = self.config(training, 0), self.work(part)
            costs[training] = estimate(config, source, work, self.runtime.devices, half=self.half)
        of_a_run = {  # what has nothing to train comes first, however the clock ran
            training: (costs[training].work.trainings > 0, costs[training].seconds / len(part))
            for training, part in parts.items()
        }
        for training in sorted(parts, key=of_a_run.__getitem__) if len(parts) > 1 else ():
            rows = dict.fromkeys(name for own in parts[training].values() for name in own)
            console.print(f"{training} ({', '.join(rows)}): {costs[training].words()}")
        ordered = sorted(plan.items(), key=lambda item: (item[0].seed, of_a_run[_alike(item[0])]))
        plan.clear()
        plan.update(ordered)
        cost = total_cost(list(costs.values()))
        console.print(cost.words())
        check_fits(cost, self.runs, self.runtime)
        return cost

    def _trains_both(self, more: str, training: str) -> bool:
        """Tell whether the training with the rationale gives the encoder of that without."""
        with_branch, without = self.config(more, 0), self.config(training, 0)
        alike = with_branch.model_copy(update={"method": without.method, "rationale": None}) == without
        if with_branch.rationale is None or not alike:
            return False
        return branch_is_detached(with_branch) and with_branch.rationale.lam == 1

    def _probed(self, names: Sequence[str]) -> list[str]:
        """Return the poolings to fit linear probes to; rows that share a pooling share its probes."""
        probed = [name for name in names if self.profile.probes(name, self.rows[name])]
        return list(dict.fromkeys(self.rows[name].pooling for name in probed))

    def _result(self, name: str, run: Run, evaluation: Evaluation) -> dict[str, Any]:
        row, scores = self.rows[name], evaluation.scores
        config = self.config(row.training, run.seed)
        images = {split: scores["setting"][f"{split}_images"] for split in ("train", "test")}
        return {
            "dataset": self.dataset.name,
            "classes": self.profile.classes or len(evaluation.cache.source.classes),
            "method": name,
            "network": row.training,
            "trained_as": run.training,
            "pooling": row.pooling,
            "seed": run.seed,
            "profile": self.profile.facts(config, _queue(config, images["train"]), half=self.half),
            "settings": self.settings(row.training),
            "retrieval": scores["retrieval"],
            "linear": scores.get("linear"),
            "localization": scores.get("localization"),
            "images": images,
            "image_side": evaluation.cache.short_side,
            "colors": None if self.colors is None else self.colors.describe(),
            "health": None if is_frozen(row.training) else embedding_health(self.folder(run)),
            "command": self._command(name, run.seed),
        }

    def _command(self, name: str, seed: int) -> str:
        """Return the command that makes a row again; paths by their last part, as they differ between machines."""
        words = ["finesight", "bench", self.command, "--profile", self.profile.name, "--methods", name]
        places = ["--data", self.data.absolute().name, "--weights", Path(self.weights).name]
        return shlex.join([*words, "--seeds", str(seed), *places, *(["--half"] if self.half else [])])


def _alike(run: Run) -> str:
    """Return the training that stands for all that cost what this one does; frozen ones train nothing."""
    return run.training if is_frozen(run.training) or run.training not in ALIKE else "lcr"


def _queue(config: TrainConfig, images: int) -> int | None:
    """Return the size of the queue; None for an objective that has none."""
    size = getattr(config.objective, "queue", None)
    data = DatasetInfo(len(hold_out(images, config)[0]), config.batch_size)
    return None if size is None else queue_size(size, data)


def _cost(trained: Usage | None, scored: Usage) -> dict[str, Any]:
    """Return seconds of training (None if not measured), of scoring until this row was known, and the peak memory."""
    return {
        "seconds": None if trained is None else round(trained.seconds, 1),
        "evaluation_seconds": round(scored.seconds, 1),
        "peak_memory_mb": round(max((trained or Usage()).peak_memory_mb, scored.peak_memory_mb)),
    }
