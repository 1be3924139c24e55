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

from processes import TINY, Command, rows, trained

STEPS = 15  # 43 images in batches of 8, three epochs
EVERY_STEP, NEVER = ("--checkpoint-minutes", "0"), ("--checkpoint-minutes", "600")


@dataclass(frozen=True)
class Case:
    """Settings, and the run with them that nothing disturbed."""

    options: tuple[str, ...]
    accumulate: int
    whole: Path


@pytest.fixture(scope="module", params=["plain", "accumulated"])
def case(request: pytest.FixtureRequest, birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The second has all a run can carry over: accumulation with an incomplete last update (15 = 7 · 2 + 1), clipping,
    norms in the branch, the best encoder so far. Both validate after every epoch."""
    options = ("--data", str(birds), "--epochs", "3", "--set", "validation.every_n_epochs=1", *TINY)
    accumulate = 1
    if request.param == "accumulated":
        accumulate = 2
        options += ("--variant", "released", "--accumulate-grad-batches", "2", "--clip-grad-norm", "1")
    whole = tmp_path_factory.mktemp("resume") / request.param
    trained(whole, *NEVER, *options)
    assert [int(row["step"]) for row in rows(whole)] == list(range(STEPS))
    return Case(options, accumulate, whole)


def started(case: Case, out: Path, *more: str) -> Command:
    return Command("train", "--out", out, *more, *case.options)


def logged(out: Path) -> int:
    """Steps whose row is complete."""
    return max(0, (out / "metrics.csv").read_text().count("\n") - 1) if (out / "metrics.csv").exists() else 0


def newest(out: Path) -> Path:
    return sorted((out / "checkpoints").glob("step-*.pt"))[-1]


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
    assert newest(out).name == newest(whole).name == f"step-{STEPS:08d}.pt"
    assert_same_state(*(torch.load(newest(run), weights_only=True) for run in (out, whole)))


def test_killed_again_and_again(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "run"
    chance = random.Random(0)
    for target in (3, 7, 11):
        killed = started(case, out, *EVERY_STEP)
        killed.until(lambda: logged(out) >= target)  # noqa: B023 (awaited at once)
        time.sleep(chance.uniform(0, 0.02))  # in the middle of whatever comes next: a step, a write, a validation
        killed.send(signal.SIGKILL)
        assert killed.wait().code == -signal.SIGKILL
        assert not (out / "encoder").exists()
        assert 1 <= len(list((out / "checkpoints").glob("step-*.pt"))) <= 2
        assert step_of(newest(out)) % case.accumulate == 0, "saved between two updates"
    kept = step_of(newest(out))
    done = trained(out, *NEVER, *case.options)
    assert f"Continuing at step {kept} of {STEPS}." in done.err
    assert_same_run(out, case.whole)


def test_killed_with_the_newest_checkpoint_destroyed(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed = started(case, out, *EVERY_STEP)
    killed.until(lambda: logged(out) >= 8)
    killed.send(signal.SIGKILL)
    assert killed.wait().code == -signal.SIGKILL
    older, newer = sorted((out / "checkpoints").glob("step-*.pt"))
    newer.write_bytes(newer.read_bytes()[: newer.stat().st_size // 2])
    done = trained(out, *NEVER, *case.options)
    assert f"Continuing at step {step_of(older)} of" in done.err
    assert_same_run(out, case.whole)


def test_killed_before_the_first_checkpoint(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed = started(case, out, *NEVER)
    killed.until(lambda: logged(out) >= 3)
    killed.send(signal.SIGKILL)
    assert killed.wait().code == -signal.SIGKILL
    assert not list(out.glob("checkpoints/*"))
    done = trained(out, *NEVER, *case.options)
    assert "Continuing" not in done.err
    assert_same_run(out, case.whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_hand(case: Case, tmp_path: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "run"
    stopped = started(case, out, *NEVER)
    stopped.until(lambda: logged(out) >= 4)
    stopped.send(number)
    done = stopped.wait()
    assert done.code == code
    assert "Traceback" not in done.err
    assert "same command" in done.err
    kept = step_of(newest(out))
    assert 4 <= kept < STEPS
    assert kept % case.accumulate == 0
    assert logged(out) == kept, "stopped at once, with everything done until then saved"
    done = trained(out, *NEVER, *case.options)
    assert f"Continuing at step {kept} of {STEPS}." in done.err
    assert_same_run(out, case.whole)


def test_another_seed_is_another_run(case: Case, tmp_path: Path) -> None:
    """The comparisons above can fail."""
    out = tmp_path / "run"
    trained(out, "--seed", "1", *NEVER, *case.options)
    ours, theirs = rows(out), rows(case.whole)
    assert all(a["loss"] != b["loss"] for a, b in zip(ours, theirs, strict=True))
