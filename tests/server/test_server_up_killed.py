"""``finesight up`` killed again and again: the next one continues whatever was under way."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import ITEMS, draw_birds
from test_server_up import QUICK, SMALL, until

from finesight.features.embedder import TorchEmbedder
from finesight.io.lock import Busy, acquire
from finesight.search.engines import index_exists, open_index
from finesight.training.checkpoints import checkpoints
from processes import refused, start_server
from serving import Serving, indexed

pytestmark = pytest.mark.slow

LONG = (
    *("--epochs", "60", "--batch-size", "8", "--preset", "paper"),
    *("--set", "rationale.projections=4", "--set", "objective.dim=8", "--set", "validation.every_n_epochs=100"),
)


def kill(running: Serving, run: Path) -> None:
    """Kill the server at once, and wait until the training that it leaves alone has saved and ended."""
    running.send(signal.SIGKILL)
    running.wait()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            acquire(run / ".lock").close()
            return
        except Busy:
            time.sleep(0.1)
    raise AssertionError("the training goes on without its server")


def stepped(health: dict[str, Any], steps: int) -> bool:
    """Whether training has done more steps than that."""
    return bool(health["training"]["phase"] == "training" and health["training"]["step"] > steps)


def steps_done(run: Path) -> int:
    """Of the newest checkpoint."""
    return max((int(file.stem.rpartition("-")[2]) for file in checkpoints(run / "checkpoints")), default=0)


def test_killed_at_every_stage(tmp_path: Path) -> None:
    birds = draw_birds(tmp_path / "birds")
    run = tmp_path / "finesight-birds"
    frozen = run / "frozen" / "index"
    with Serving("up", birds, *SMALL, *LONG, *QUICK) as running:  # while its encoder or its index is made
        running.until(lambda: index_exists(frozen))
        kill(running, run)
    with Serving("up", birds, *QUICK) as running:  # no option need be given again; when training has just begun
        running.until(lambda: (run / "config.yaml").exists())
        kill(running, run)
    assert len(open_index(frozen)) == ITEMS
    with Serving("up", birds, *QUICK) as running:  # in the middle of it
        until(running, lambda health: stepped(health, 20))
        (run / "report.html").touch()  # drawing it takes longer than the training
        kill(running, run)
    saved = steps_done(run)
    assert 20 < saved < 300  # of 60 epochs of 5 steps
    assert not (run / "encoder").exists()
    with Serving("up", birds, *QUICK) as running:  # while the second index is made
        running.until(lambda: (run / "encoder" / "encoder.json").exists())
        running.until(lambda: index_exists(run / "index"))
        kill(running, run)
    assert f"Continuing at step {saved} of 300." in (run / "training.log").read_text()
    with Serving("up", birds, *QUICK) as running:
        health = until(running, lambda health: health["training"]["state"] == "done" and len(health["features"]) == 2)
        assert [one["items"] for one in health["features"]] == [ITEMS, ITEMS]
        assert health["problem"] is None
        code, _, _ = running.stop()
    assert code in (0, 130)
    # the indexes are those that nothing disturbed
    for home, encoder in ((frozen.parent, frozen.parent), (run, run)):
        copy = Path(shutil.copytree(encoder / "encoder", tmp_path / "copies" / encoder.name / "encoder")).parent
        whole, made = open_index(indexed(copy, birds)), open_index(home / "index")
        assert made.meta.fingerprint == whole.meta.fingerprint == TorchEmbedder.load(encoder).fingerprint
        assert sorted(made.list_items().ids) == sorted(whole.list_items().ids)


def test_ctrl_c_saves_the_training_and_other_settings_are_refused(tmp_path: Path) -> None:
    birds = draw_birds(tmp_path / "birds")
    run = tmp_path / "finesight-birds"
    with Serving("up", birds, *SMALL, *LONG, "--epochs", "2000", *QUICK) as running:
        until(running, lambda health: stepped(health, 5))
        # a second server shows what the first one trains, and trains nothing itself
        with Serving("up", birds, *QUICK) as other:
            health = until(other, lambda health: stepped(health, 5))
            assert health["training"]["state"] == "running"
            assert httpx.post(f"{other.url}api/training", timeout=30).status_code == 409
            other.stop()
        code, _, err = running.stop()
    assert code in (0, 130)
    assert "Saving the training" in err
    assert "Traceback" not in err
    assert steps_done(run) > 5
    assert not any(_is_training(int(name), run) for name in os.listdir("/proc") if name.isdigit())
    done = Serving("up", birds, "--set", "optim.lr=0.5", *QUICK).wait()
    refused(done, "another configuration", "optim.lr", "0.5 now")
    done = Serving("up", birds, "--minutes", "7", *QUICK).wait()
    refused(done, "7 minutes now")
    (tmp_path / "others").mkdir()
    shutil.copy(birds / "kind-2" / "bird 1.png", tmp_path / "others")
    done = Serving("up", tmp_path / "others", "--out", run, *QUICK).wait()
    refused(done, "birds", "others")


def _is_training(pid: int, run: Path) -> bool:
    """Whether a process has a file of the run open."""
    try:
        return any(
            os.readlink(f"/proc/{pid}/fd/{name}").startswith(f"{run}/") for name in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def _in_background(request: str, log: str) -> None:
    """Train as the server lets it be done, in a process that has imported everything."""
    output = os.open(log, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    from finesight.cli.background import main

    sys.stdin = open(request)  # noqa: SIM115 (closing it would wait for the thread that reads it)
    main()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_stopped_while_it_is_planned_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Its first steps are timed then: those of this network take long enough to be stopped in."""
    birds, run = draw_birds(tmp_path / "birds"), tmp_path / "run"
    pipe, log = tmp_path / "pipe", tmp_path / "training.log"
    os.mkfifo(pipe)
    log.touch()
    network = {"backbone.name": "resnet18", "backbone.weights": "random", "views.resolution": 224, "batch_size": 16}
    wanted = {"given": {"data": str(birds), **network}, "preset": "auto", "minutes": 9, "more": False}
    start_server()
    training = multiprocessing.get_context("forkserver").Process(target=_in_background, args=(str(pipe), str(log)))
    training.start()
    with pipe.open("w") as stream:
        request = {"out": str(run), "cache_dir": str(tmp_path / "cache"), "workers": 1, **wanted}
        stream.write(json.dumps(request) + "\n")
        stream.flush()
        deadline = time.monotonic() + 300
        while training.is_alive() and "Timing a few steps" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert training.is_alive(), log.read_text()
        os.kill(training.pid or 0, number)
        training.join(300)
    said = log.read_text()
    assert training.exitcode == 128 + number, said
    assert "Timing a few steps" in said
    assert said.count("finesight: Stopped") == 1
    assert "Traceback" not in said
    assert not run.exists()


def test_a_training_that_fails_is_told(tmp_path: Path) -> None:
    birds = draw_birds(tmp_path / "birds")
    with Serving("up", birds, *SMALL, *LONG, "--set", "limit_classes=50", *QUICK) as running:
        health = until(running, lambda health: health["training"]["state"] == "failed")
        assert "50" in health["training"]["words"]  # there are no so many classes
        assert health["training"]["can_start"]
        assert health["items"] == ITEMS  # searching goes on
        again = httpx.post(f"{running.url}api/training", timeout=30)
        assert again.status_code == 200
        until(running, lambda health: health["training"]["state"] == "failed")
        _, _, err = running.stop()
    assert "Training failed" in err
