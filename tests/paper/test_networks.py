"""Trainings of a bench: what tells two apart, what they took, and those that run as a command of their own."""

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

from finesight.errors import FineSightError, Interrupted
from finesight.paper import networks
from finesight.paper.engine import Bench
from finesight.paper.networks import by_epoch, changed, finished, health, settings, spent, trained
from finesight.paper.systems import PROJECTIONS, UNTRAINED
from finesight.training.run_folder import RunFolder

WAITING = """
import pathlib, signal, sys, time
def stop(number, frame):
    print("stopped", flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_settings_are_all_but_the_seed_and_where_files_lie(cub: Path, tmp_path: Path) -> None:
    one = tiny.bench(cub, tmp_path, weights="/a/weights.pth").config("lcr", 0)
    other = tiny.bench(tmp_path / cub.name, tmp_path, weights="b/weights.pth").config("lcr", 5)
    assert settings(one) == settings(other)
    assert settings(one)["backbone.weights"] == "weights.pth"
    assert "seed" not in settings(one)
    longer = tiny.bench(cub, tmp_path, tiny.profile(epochs=3), weights="weights.pth").config("lcr", 0)
    assert changed(settings(one), settings(longer)) == ["epochs: 1 then, 3 now"]
    assert json.loads(json.dumps(settings(one))) == settings(one), "as a result keeps them"


def test_a_setting_only_one_version_knows_is_no_change() -> None:
    assert changed({"old": 1, "both": 2}, {"new": 3, "both": 2}) == []


def test_a_trained_network_has_all_its_branches(done: Bench) -> None:
    encoder = trained(done.run("lcr", 0), done.config("lcr", 0), done.runtime)
    assert set(encoder.others) == {*map(str, PROJECTIONS), UNTRAINED}
    assert [encoder.others[str(k)].filters.out_channels for k in PROJECTIONS] == list(PROJECTIONS)
    assert trained(done.run("moco-v2", 0), done.config("moco-v2", 0), done.runtime).others == {}


def test_time_that_nobody_took_is_not_known(done: Bench, tmp_path: Path) -> None:
    assert spent(RunFolder(tmp_path)) is None
    known = spent(done.run("lcr", 0))
    assert known is not None
    assert known.seconds > 0
    assert known.peak_memory_mb > 50


def test_a_run_of_which_nothing_is_learned_may_change_its_settings(cub: Path, tmp_path: Path) -> None:
    job, run = tiny.bench(cub, tmp_path), RunFolder(tmp_path / "run")
    with run.locked():
        run.enter(job.config("moco-v2", 0).with_absolute_paths(), restart=False)
    assert not finished(run)
    networks._refuse_another(run, tiny.bench(cub, tmp_path, tiny.profile(epochs=3)).config("moco-v2", 0))
    run.metrics_file.touch()
    with pytest.raises(
        FineSightError, match=r"epochs: 1 then, 3 now\nDelete it to train again, or give another --runs"
    ):
        networks._refuse_another(run, tiny.bench(cub, tmp_path, tiny.profile(epochs=3)).config("moco-v2", 0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_command_of_several_devices_once(
    cub: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    started = tmp_path / "started"
    job = tiny.bench(cub, tmp_path)
    job = replace(job, runtime=job.runtime.model_copy(update={"devices": 2}))
    monkeypatch.setattr(networks, "_command", lambda *_: [sys.executable, "-c", WAITING, str(started)])
    before = signal.getsignal(number)

    def stop() -> None:
        while not started.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        networks._train(job.run("lcr", 0), job.config("lcr", 0), job.runtime)
    assert stopped.value.exit_code == 128 + number
    assert capfd.readouterr().out.count("stopped") == 1
    assert signal.getsignal(number) is before
    assert not job.run("lcr", 0).root.exists(), "it had not begun"


@pytest.mark.parametrize(
    ("spread", "rank", "collapsed"),
    [((0.9, 0.8), (9, 8), False), ((0.9, 0.01), (9, 8), True), ((0.9, 0.8), (1, 1), True)],
)
def test_health_is_that_of_the_last_epoch(
    tmp_path: Path, spread: tuple[float, ...], rank: tuple[float, ...], collapsed: bool
) -> None:
    run = RunFolder(tmp_path)
    assert health(run) is None
    lines = ["step,epoch,embedding_spread,effective_rank"]
    for step, epoch in enumerate((0.5, 1.0, 1.5, 2.0)):
        lines.append(f"{step},{epoch},{spread[step // 2] + 0.02 * (step % 2)},{rank[step // 2]}")
    run.metrics_file.write_text("\n".join(lines) + "\n")
    found = health(run)
    assert found is not None
    assert found["embedding_spread"] == pytest.approx(spread[1] + 0.01)
    assert found["effective_rank"] == rank[1]
    assert found["collapsed"] is collapsed
    assert [epoch for epoch, _ in by_epoch(run)["effective_rank"]] == [1, 2]
