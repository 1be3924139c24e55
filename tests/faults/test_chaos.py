"""The short form of ``make chaos``: two minutes of kills, full disks and flipped bits, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.faults import inject
from chaos.kills import kill_trials, undisturbed
from chaos.workloads import WORKLOADS, World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("chaos"))


def test_killed_at_random_moments(world: World, tmp_path: Path) -> None:
    trials = list(kill_trials(WORKLOADS, world, tmp_path, seed=1, kills=14, each=3, minutes=1))
    assert not [problem for trial in trials for problem in trial.problems]
    assert sum(trial.kills for trial in trials) >= 3  # of 14, if the machine is not too busy
    assert max(trial.repeated for trial in trials) <= 1


@pytest.mark.parametrize("kind", ["disk", "read-only", "images", "bits"])
def test_faults(world: World, tmp_path: Path, kind: str) -> None:
    some = tuple(one for one in WORKLOADS if one.name in ("cache", "train-lcr", "index"))
    known = {one.name: undisturbed(one, world, tmp_path / f"whole-{one.name}")[0] for one in some}
    found = list(inject((kind,), world, tmp_path, known, seed=1, count=1))
    assert not [fault for fault in found if fault.is_defect]
    assert len(found) >= len(some)
