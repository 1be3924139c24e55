"""The short form of ``make chaos``: two minutes of kills, full disks and flipped bits, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import TIMEOUT, environment

pytestmark = pytest.mark.slow
TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``python -m chaos`` found in a short run."""
    out = tmp_path_factory.mktemp("chaos") / "chaos.json"
    path = os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("--seed", "1", "--kills", "16", "--each", "2", "--minutes", "1", "--without", "up", "index-milvus")
    faults = ("--faults", "disk", "read-only", "images", "bits", "--faults-for", "cache", "train-lcr", "index")
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *options, *faults, "--count", "1", "--all-faults", "--out", out],
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_killed_at_random_moments(report: dict[str, Any]) -> None:
    assert [trial for trial in report["raw"]["trials"] if trial["problems"]] == []
    assert report["kills"] >= 4  # of 16, if the machine is not too busy
    assert report["most_steps_repeated"] <= 1


def test_faults(report: dict[str, Any]) -> None:
    good = ("survived", "sentence", "skipped")
    assert [fault for fault in report["raw"]["faults"] if fault["outcome"] not in good] == []
    assert report["faults"] >= 21
