"""A map in threads that keeps order and bounds."""

from __future__ import annotations

import threading
import time

import pytest

from finesight.io.parallel import bounded_map


def test_results_come_in_order_with_their_items() -> None:
    def slow(n: int) -> int:
        time.sleep(0.001 * (n % 3))
        return n * n

    assert list(bounded_map(slow, range(50), workers=4)) == [(n, n * n) for n in range(50)]
    assert list(bounded_map(slow, [], workers=4)) == []


def test_no_more_than_the_bound_is_begun_before_results_are_taken() -> None:
    begun = []
    results = bounded_map(begun.append, range(1000), workers=2, ahead=3)
    next(results)
    time.sleep(0.1)
    assert len(begun) <= 2 * 3 + 1
    results.close()  # type: ignore[attr-defined]


def test_an_error_comes_in_its_place_and_threads_end() -> None:
    def fail(n: int) -> int:
        if n == 3:
            raise KeyError(n)
        return n

    before = threading.active_count()
    results = bounded_map(fail, range(100), workers=2)
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert threading.active_count() == before
