"""The networks of a bench: trained once into a run folder, continued when cut off, loaded from then on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.named_path import split_named_path
from finesight.errors import FineSightError, Interrupted
from finesight.features.encoder import Encoder
from finesight.io.atomic import write_atomic
from finesight.paper.machine import Usage, measured
from finesight.paper.systems import UNTRAINED
from finesight.report.train import train_and_report
from finesight.training.config import RuntimeConfig, TrainConfig, flat, write_yaml
from finesight.training.health import collapse_warning
from finesight.training.metrics_log import read_metrics
from finesight.training.renamed import current_settings
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import load_studied_branches

ELSEWHERE = ("data", "backbone.weights")  # files: they lie elsewhere on another machine
HEALTH = ("embedding_spread", "effective_rank")


def settings(config: TrainConfig) -> dict[str, Any]:
    """All that a training depends on but its seed; files by their last part."""
    values = {key: value for key, value in flat(config).items() if key != "seed"}
    places = values | {"data": split_named_path(values["data"])[1]}  # cub:PATH is the same data as PATH
    return values | {key: Path(places[key]).name for key in ELSEWHERE}


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words; a setting that only one of them knows belongs to another version and is not compared."""
    before, _ = current_settings(before)
    return [f"{key}: {before[key]} then, {now[key]} now" for key in before if key in now and before[key] != now[key]]


def finished(run: RunFolder) -> bool:
    return (run.encoder / "encoder.json").exists()


def trained(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig) -> Encoder:
    """The network of this configuration with all its branches: LCR's own, those studied beside it, a fresh one."""
    _refuse_another(run, config)
    if not finished(run):
        _train(run, config, runtime)
    encoder = Encoder.load(run.root)
    if encoder.branch is None:
        return encoder
    studied = {str(k): branch for k, branch in load_studied_branches(run).items()}
    return encoder.with_branches({**studied, UNTRAINED: encoder.fresh_branch(config.seed)})


def spent(run: RunFolder) -> Usage | None:
    """On all starts of a training but those that were killed; None of one that another program started."""
    file = _record(run)
    return Usage(**json.loads(file.read_text())) if file.exists() else None


def by_epoch(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Every metric as the mean over the logged steps of each epoch: one step is a batch, and a batch is chance."""
    values: dict[str, dict[int, list[float]]] = {}
    for row in read_metrics(run.metrics_file):
        epoch = int(np.ceil(float(row["epoch"]) - 1e-9))
        for name, value in row.items():
            if value and name not in ("step", "epoch"):
                values.setdefault(name, {}).setdefault(epoch, []).append(float(value))
    return {name: [(e, float(np.mean(found))) for e, found in epochs.items()] for name, epochs in values.items()}


def health(run: RunFolder) -> dict[str, Any] | None:
    """Of the embeddings in the last epoch, and whether that is a collapse; None where nothing was logged."""
    epochs = by_epoch(run)
    if not all(name in epochs for name in HEALTH):
        return None
    last = {name: epochs[name][-1][1] for name in HEALTH}
    return {**last, "collapsed": collapse_warning(last) is not None}


def _record(run: RunFolder) -> Path:
    return run.root / "bench.json"


def _refuse_another(run: RunFolder, config: TrainConfig) -> None:
    """Else what a profile once was would be scored under its name."""
    if not (finished(run) or run.metrics_file.exists()):  # nothing was learned yet: its settings may change
        return
    if differences := changed(settings(run.config()), settings(config)):
        lines = "\n".join(f"  {line}" for line in differences)
        raise FineSightError(
            f"{run.root} was trained with other settings:\n{lines}\nDelete it to train again, or give another --runs."
        )


def _train(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig) -> None:
    """Time is counted when training ends or is stopped; one that was refused is not ours to write into."""
    stopped: Interrupted | None = None
    with measured() as usage:
        try:
            _train_on_devices(run, config, runtime)
        except Interrupted as stop:
            stopped = stop
    if run.config_file.exists():  # a folder with our record alone would be no run's
        before = spent(run) or Usage()
        total = Usage(before.seconds + usage.seconds, max(before.peak_memory_mb, usage.peak_memory_mb))
        write_atomic(_record(run), (json.dumps(vars(total)) + "\n").encode())
    if stopped is not None:
        raise stopped


def _train_on_devices(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig) -> None:
    """Here, or for several devices as a command of its own: Lightning starts the other processes by repeating the
    command line, and that of a bench would begin them all with the bench."""
    if runtime.devices == 1:
        train_and_report(config, run.root, runtime)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        write_yaml(config, file)
        code = _wait(subprocess.Popen(_command(run, file, runtime), start_new_session=True))
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise Interrupted(code - 128, "The bench has stopped with it.")
    if code:
        raise FineSightError(f"Training into {run.root} has failed; its message is above.")


def _command(run: RunFolder, config: Path, runtime: RuntimeConfig) -> list[str]:
    words = ["--config", str(config), "--out", str(run.root), "--devices", str(runtime.devices)]
    if runtime.cache_dir is not None:
        words += ["--cache-dir", str(runtime.cache_dir)]
    if runtime.workers is not None:
        words += ["--workers", str(runtime.workers)]
    return [sys.executable, "-m", "finesight", "train", *words, *([] if runtime.progress else ["--quiet"])]


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Its exit code. A signal to stop is handed on once: a terminal would send it to both, and two mean at once."""
    with _handing_on(child):
        return child.wait()


@contextmanager
def _handing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda received, _: child.send_signal(received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
