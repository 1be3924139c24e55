"""Time and memory as they are: real allocations and real sleeps."""

from __future__ import annotations

import subprocess
import sys
import time

from finesight.paper.machine import Meter, commit, machine, provenance

# In a process of its own: one that has run a network keeps freed memory.
ALLOCATION = """
import numpy as np
from finesight.paper.machine import Meter
before = Meter().usage()
meter = Meter()
np.ones(200 * 2**20, np.uint8)  # touched, so that the pages are really there; given back at once
print(before.peak_memory_mb, meter.usage().peak_memory_mb, Meter().usage().peak_memory_mb)
"""


def test_an_allocation_is_seen_and_forgotten() -> None:
    shown = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True).stdout
    before, during, after = map(float, shown.split())
    assert 190 < during - before < 260
    assert after < during - 150, "the peak is since the meter began, not of the process"


def test_time_is_that_on_the_wall() -> None:
    began = time.perf_counter()
    meter = Meter()
    time.sleep(0.1)
    assert 0.1 <= meter.usage().seconds <= time.perf_counter() - began


def test_the_machine_in_words() -> None:
    assert "cores" in machine()
    assert "torch" in machine()
    assert "\n" not in machine()


def test_without_git_there_is_no_commit() -> None:
    """PATH is empty here, see conftest."""
    assert commit() == ""
    assert provenance().keys() == {"commit", "version", "machine"}
