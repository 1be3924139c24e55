"""Trainings of an experiment: what tells two apart, what they took, and those that run as a command of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

from finesight.errors import Interrupted
from finesight.paper.benchmark import Benchmark
from finesight.paper.experiment import Run
from finesight.paper.rows import PROJECTIONS, UNTRAINED
from finesight.paper.runs import comparable_settings, embedding_health, epoch_means, is_begun, training_usage
from finesight.training.run_folder import RunFolder

WAITING = f"""#!{sys.executable}
import pathlib, signal, sys, time
def stop(number, frame):
    print("stopped", flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(__file__ + ".started").touch()
time.sleep(60)
"""


def test_settings_are_all_but_the_seed_and_where_files_lie(cub: Path, tmp_path: Path) -> None:
    one = tiny.bench(cub, tmp_path, weights="/a/weights.pth").config("lcr", 0)
    other = tiny.bench(tmp_path / cub.name, tmp_path, weights="b/weights.pth").config("lcr", 5)
    settings = comparable_settings(one)
    assert settings == comparable_settings(other)
    assert settings["backbone.weights"] == "weights.pth"
    assert "seed" not in settings
    assert json.loads(json.dumps(settings)) == settings, "as a result keeps them"


def test_a_trained_encoder_has_all_its_branches(done: Benchmark) -> None:
    encoder = done.encoder(Run("lcr", 0))
    assert set(encoder.extra_branches) == {*map(str, PROJECTIONS), UNTRAINED}
    assert [encoder.extra_branches[str(k)].filters.out_channels for k in PROJECTIONS] == list(PROJECTIONS)
    assert done.encoder(Run("moco-v2", 0)).extra_branches == {}


def test_time_that_nobody_took_is_not_known(done: Benchmark, tmp_path: Path) -> None:
    assert training_usage(RunFolder(tmp_path)) is None
    known = training_usage(done.folder(Run("lcr", 0)))
    assert known is not None
    assert known.seconds > 0
    assert known.peak_memory_mb > 50


def test_a_run_in_which_nothing_is_learned_may_change_its_settings(cub: Path, tmp_path: Path) -> None:
    job = tiny.bench(cub, tmp_path, names=["moco-v2"])
    run = job.folder(Run("moco-v2", 0))
    with run.locked():
        run.enter(job.config("moco-v2", 0).with_absolute_paths(), restart=False)
    assert not is_begun(run)
    assert tiny.plan(replace(job, profile=tiny.profile(epochs=3))) == {Run("moco-v2", 0): ["moco-v2"]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_command_of_several_devices_once(
    cub: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    script = tmp_path / "python"
    script.write_text(WAITING)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    job = tiny.bench(cub, tmp_path)
    job = replace(job, runtime=job.runtime.model_copy(update={"devices": 2}))
    before = signal.getsignal(number)

    def stop() -> None:
        while not Path(f"{script}.started").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        job.encoder(Run("lcr", 0))
    assert stopped.value.exit_code == 128 + number
    assert capfd.readouterr().out.count("stopped") == 1
    assert signal.getsignal(number) is before
    assert not job.folder(Run("lcr", 0)).root.exists(), "it had not begun"


@pytest.mark.parametrize(
    ("spread", "rank", "collapsed"),
    [((0.9, 0.8), (9, 8), False), ((0.9, 0.01), (9, 8), True), ((0.9, 0.8), (1, 1), True)],
)
def test_health_is_that_of_the_last_epoch(
    tmp_path: Path, spread: tuple[float, ...], rank: tuple[float, ...], collapsed: bool
) -> None:
    run = RunFolder(tmp_path)
    assert embedding_health(run) is None
    lines = ["step,epoch,embedding_spread,effective_rank"]
    for step, epoch in enumerate((0.5, 1.0, 1.5, 2.0)):
        lines.append(f"{step},{epoch},{spread[step // 2] + 0.02 * (step % 2)},{rank[step // 2]}")
    run.metrics_file.write_text("\n".join(lines) + "\n")
    health = embedding_health(run)
    assert health is not None
    assert health["embedding_spread"] == pytest.approx(spread[1] + 0.01)
    assert health["effective_rank"] == rank[1]
    assert health["collapsed"] is collapsed
    assert [epoch for epoch, _ in epoch_means(run)["effective_rank"]] == [1, 2]
