"""Time and memory as they are: real allocations and real sleeps."""

from __future__ import annotations

import time

import numpy as np
import pytest

from finesight.paper.machine import Usage, commit, machine, measured

SIZE = 200 * 2**20


def allocate() -> None:
    """Touched, so that the pages are really there; given back at the end."""
    np.ones(SIZE, np.uint8)


def test_an_allocation_is_seen_and_forgotten() -> None:
    with measured() as before:
        pass
    with measured() as during:
        allocate()
    with measured() as after:
        pass
    grown = during.peak_memory_mb - before.peak_memory_mb
    assert 190 < grown < 260
    assert after.peak_memory_mb < during.peak_memory_mb - 150, "the peak is of the block, not of the process"


def test_time_is_that_on_the_wall() -> None:
    with measured() as usage:
        time.sleep(0.3)
    assert 0.3 <= usage.seconds < 2


def test_a_block_that_fails_is_measured_too() -> None:
    seen: list[Usage] = []

    def fail() -> None:
        with measured() as usage:
            seen.append(usage)
            time.sleep(0.05)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen[0].seconds >= 0.05
    assert seen[0].peak_memory_mb > 10


def test_blocks_inside_blocks_know_at_least_their_own() -> None:
    with measured() as outer, measured() as inner:
        allocate()
    assert outer.peak_memory_mb >= inner.peak_memory_mb > 190


def test_the_machine_in_words() -> None:
    assert "cores" in machine()
    assert "torch" in machine()
    assert "\n" not in machine()


def test_without_git_there_is_no_commit() -> None:
    """PATH is empty here, see conftest."""
    assert commit() == ""
