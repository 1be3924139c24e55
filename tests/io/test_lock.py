"""Locks hold between processes and end with their owner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from finesight.io.lock import Busy, acquire, locked

HOLD = """
import sys, time
from pathlib import Path
from finesight.io.lock import acquire
handle = acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):  # type: ignore[no-untyped-def]
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_another_process_is_refused_until_the_owner_is_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(Busy):
        acquire(tmp_path / "lock")
    holder.kill()
    holder.wait()
    acquire(tmp_path / "lock").close()


def test_waiting_is_announced_once_and_ends(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    calls = []

    def on_wait() -> None:
        calls.append(1)
        holder.kill()

    with locked(tmp_path / "lock", on_wait), pytest.raises(Busy):
        acquire(tmp_path / "lock")
    acquire(tmp_path / "lock").close()
    assert calls == [1]
