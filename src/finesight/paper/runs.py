"""Trainings of an experiment: each is trained once into a run folder, continued when cut off, and then loaded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.named_path import split_named_path
from finesight.errors import Interrupted
from finesight.features.encoder import Encoder
from finesight.io.atomic import write_atomic
from finesight.paper.machine import Meter, Usage
from finesight.paper.processes import run_commands
from finesight.paper.rows import UNTRAINED
from finesight.report.train import train_and_report
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.config_file import write_yaml
from finesight.training.dotted_keys import flat
from finesight.training.health import collapse_warning
from finesight.training.metrics_log import read_metrics
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import load_studied_branches
from finesight.training.train import train

ELSEWHERE = ("data", "backbone.weights")  # files: they lie elsewhere on another machine
HEALTH = ("embedding_spread", "effective_rank")


def comparable_settings(config: TrainConfig) -> dict[str, Any]:
    """Return all settings that a training depends on but its seed; files by the last part of their path."""
    values = {key: value for key, value in flat(config).items() if key != "seed"}
    places = values | {"data": split_named_path(values["data"])[1]}  # cub:PATH is the same data as PATH
    return values | {key: Path(places[key]).name for key in ELSEWHERE}


def is_finished(run: RunFolder) -> bool:
    return run.is_finished


def is_begun(run: RunFolder) -> bool:
    """Tell whether anything was learned in it: before that its settings may change."""
    return is_finished(run) or run.metrics_file.exists()


def load_or_train(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig, *, report: bool = True) -> Encoder:
    """Return the encoder of a run with all its branches: LCR's own, those studied beside it and a fresh one.

    Trains it first unless it is finished; a training that was cut off continues.
    """
    if not is_finished(run):
        _train(run, config, runtime, report=report)
    encoder = Encoder.load(run.root)
    if encoder.branch is None:
        return encoder
    studied = {str(k): branch for k, branch in load_studied_branches(run).items()}
    return encoder.with_branches({**studied, UNTRAINED: encoder.fresh_branch(config.seed)})


def training_usage(run: RunFolder) -> Usage | None:
    """Return what all starts of a training took but those that were killed; None if it was not measured."""
    file = _usage_file(run)
    return Usage(**json.loads(file.read_text())) if file.exists() else None


def record_usage(run: RunFolder, usage: Usage) -> None:
    """Add what a start of a training took to its record."""
    if run.config_file.exists():  # a folder with our record alone would be no run's
        before = training_usage(run) or Usage()
        total = Usage(before.seconds + usage.seconds, max(before.peak_memory_mb, usage.peak_memory_mb))
        write_atomic(_usage_file(run), (json.dumps(vars(total)) + "\n").encode())


def epoch_means(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Return every metric as (epoch, mean over its logged steps): a single step is one random batch."""
    values: dict[str, dict[int, list[float]]] = {}
    for row in read_metrics(run.metrics_file):
        epoch = int(np.ceil(float(row["epoch"]) - 1e-9))
        for name, value in row.items():
            if value and name not in ("step", "epoch"):
                values.setdefault(name, {}).setdefault(epoch, []).append(float(value))
    return {name: [(e, float(np.mean(steps))) for e, steps in epochs.items()] for name, epochs in values.items()}


def embedding_health(run: RunFolder) -> dict[str, Any] | None:
    """Return spread and rank of the embeddings in the last epoch, and whether they collapsed; None if not logged."""
    epochs = epoch_means(run)
    if not all(name in epochs for name in HEALTH):
        return None
    last = {name: epochs[name][-1][1] for name in HEALTH}
    return {**last, "collapsed": collapse_warning(last) is not None}


def _usage_file(run: RunFolder) -> Path:
    return run.root / "bench.json"


def _train(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig, *, report: bool) -> None:
    """Train, and add the time to the run's record when training ends or is stopped."""
    meter, stopped = Meter(), None
    try:
        _train_on_devices(run, config, runtime, report=report)
    except Interrupted as stop:
        stopped = stop
    record_usage(run, meter.usage())
    if stopped is not None:
        raise stopped


def _train_on_devices(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig, *, report: bool) -> None:
    """Train in this process, or on several devices in a process of its own.

    Lightning starts the other processes by repeating the command line; that of the bench would start benches.
    """
    if runtime.devices == 1:
        (train_and_report if report else train)(config, run.root, runtime)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        write_yaml(config, file)
        run_commands([_command(run, file, runtime)], f"Training into {run.root} has failed; its message is above.")


def _command(run: RunFolder, config: Path, runtime: RuntimeConfig) -> list[str]:
    words = ["--preset", "paper", "--config", str(config), "--out", str(run.root), "--devices", str(runtime.devices)]
    if runtime.cache_dir is not None:
        words += ["--cache-dir", str(runtime.cache_dir)]
    if runtime.workers is not None:
        words += ["--workers", str(runtime.workers)]
    words += ["--precision", runtime.precision]
    return ["train", *words, *([] if runtime.progress else ["--quiet"])]
