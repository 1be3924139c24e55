"""A run that was killed or stopped, at any moment, ends as the one that was not: bit for bit, in real processes."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from finesight.training.checkpoints import load_checkpoint
from processes import TINY, Command, Finished, TooLate, in_time, rows, trained

pytestmark = pytest.mark.slow

STEPS = 15  # 43 images in batches of 8, three epochs
EVERY_STEP, NEVER = ("--checkpoint-minutes", "0"), ("--checkpoint-minutes", "600")


@dataclass(frozen=True)
class Case:
    """Settings, and how the run with them is stopped."""

    settings: tuple[str, ...]
    stop: signal.Signals
    code: int
    accumulate: int = 1
    looks: int = 0  # how often all images are encoded before an epoch


CASES = {
    "plain": Case(("--set", "validation.every_n_epochs=1"), signal.SIGINT, 130),
    # all a run can carry over: accumulation with an incomplete last update (15 = 7 · 2 + 1), clipping, norms in the
    # branch, the best encoder so far
    "accumulated": Case(
        (
            *("--set", "validation.every_n_epochs=1", "--variant", "released"),
            *("--accumulate-grad-batches", "2", "--clip-grad-norm", "1"),
        ),
        signal.SIGTERM,
        143,
        accumulate=2,
    ),
    # what the training hook knows, found before the second and the third epoch
    "objects": Case(
        (
            *("--set", "saliency.source=rationale", "--set", "saliency.every_n_epochs=1", "--set", "views.paste=0.5"),
            *("--set", "focus.source=saliency", "--set", "focus.threshold=0.6", "--set", "rationale.keep=top"),
            *("--set", "rationale.keep_count=2", "--set", "rationale.keep_from=1"),
        ),
        signal.SIGINT,
        130,
        looks=2,
    ),
}


def logged(out: Path) -> int:
    """Steps whose row is complete."""
    return max(0, (out / "metrics.csv").read_text().count("\n") - 1) if (out / "metrics.csv").exists() else 0


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("step-*.pt"))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


def assert_same_state(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same_state(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for n, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same_state(left, right, f"{where}/{n}")
    else:
        assert a == b, where


def assert_same_run(out: Path, whole: Path) -> None:
    """Every number of every step, the weights left behind, and all of the last state (queue, twin, optimizer …)."""
    assert (out / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    for part in ("encoder.safetensors", "encoder.json"):
        assert (out / "encoder" / part).read_bytes() == (whole / "encoder" / part).read_bytes()
    assert checkpoints(out)[-1].name == checkpoints(whole)[-1].name == f"step-{STEPS:08d}.pt"
    assert_same_state(*(torch.load(checkpoints(run)[-1], weights_only=True) for run in (out, whole)))


@pytest.mark.parametrize("name", CASES)
def test_stopped_in_every_way_and_continued_ends_as_never_stopped(name: str, birds: Path, tmp_path: Path) -> None:
    case = CASES[name]
    options = ("--data", str(birds), "--epochs", "3", *TINY, *case.settings)
    whole = tmp_path / "whole"
    done = trained(whole, *NEVER, *options)
    assert [int(row["step"]) for row in rows(whole)] == list(range(STEPS))
    assert done.err.count("Looking for the objects") == case.looks
    in_time(lambda place: stop_and_continue(case, options, place / "run", whole), tmp_path)


def stop_and_continue(case: Case, options: tuple[str, ...], out: Path, whole: Path) -> None:
    chance = random.Random(0)

    def stopped(number: signal.Signals, more_steps: int, *more: str) -> Finished:
        """Start and stop after so many steps more than any process before took."""
        steps = logged(out) + more_steps
        process = Command("train", "--out", out, *more, *options)
        process.until(lambda: logged(out) >= steps)
        time.sleep(chance.uniform(0, 0.02))  # in the middle of whatever comes next: a step, a write, a validation
        process.send(number)
        done = process.wait()
        if logged(out) == STEPS:
            raise TooLate
        return done

    assert stopped(signal.SIGKILL, 2, *NEVER).code == -signal.SIGKILL
    assert not checkpoints(out), "killed before the first checkpoint"
    assert stopped(signal.SIGKILL, 3, *EVERY_STEP).code == -signal.SIGKILL
    assert not (out / "encoder").exists()
    *_, older, newer = checkpoints(out)  # three, if the kill came between writing the newest and removing the oldest
    assert step_of(older) % case.accumulate == step_of(newer) % case.accumulate == 0, "saved between two updates"
    newer.write_bytes(newer.read_bytes()[: newer.stat().st_size // 2])  # destroyed

    done = stopped(case.stop, 1, *NEVER)
    assert done.code == case.code
    assert "Traceback" not in done.err
    assert "same command" in done.err
    assert f"Continuing at step {step_of(older)} of {STEPS}." in done.err
    kept = step_of(checkpoints(out)[-1])
    assert step_of(older) < kept < STEPS
    assert kept % case.accumulate == 0
    assert logged(out) == kept, "stopped at once, with everything done until then saved"

    done = trained(out, *NEVER, *options)
    assert f"Continuing at step {kept} of {STEPS}." in done.err
    assert_same_run(out, whole)
    if case.looks:
        assert done.err.count("Looking for the objects") == (kept <= 10), "what was found before is in the checkpoint"
        state = load_checkpoint(out / "checkpoints")[1]["module"]
        assert sum(file.suffix == ".npz" for file in (out / "checkpoints").iterdir()) <= 2, "what no checkpoint names"
        assert len(state["hook.boxes"].unique(dim=0)) > 5
        assert state["hook.maps"].any()
        assert state["rationale.branch.kept"].sum() == 2
