"""Time and memory as they are: real allocations and real sleeps."""

from __future__ import annotations

import time

import numpy as np

from finesight.paper.machine import Meter, commit, machine, provenance

SIZE = 200 * 2**20


def allocate() -> None:
    """Touched, so that the pages are really there; given back at the end."""
    np.ones(SIZE, np.uint8)


def test_an_allocation_is_seen_and_forgotten() -> None:
    before = Meter().usage()
    meter = Meter()
    allocate()
    during = meter.usage()
    after = Meter().usage()
    assert 190 < during.peak_memory_mb - before.peak_memory_mb < 260
    assert after.peak_memory_mb < during.peak_memory_mb - 150, "the peak is since the meter began, not of the process"


def test_time_is_that_on_the_wall() -> None:
    meter = Meter()
    time.sleep(0.1)
    assert 0.1 <= meter.usage().seconds < 2


def test_the_machine_in_words() -> None:
    assert "cores" in machine()
    assert "torch" in machine()
    assert "\n" not in machine()


def test_without_git_there_is_no_commit() -> None:
    """PATH is empty here, see conftest."""
    assert commit() == ""
    assert provenance().keys() == {"commit", "version", "machine"}
