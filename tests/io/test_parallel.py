"""A map in threads that keeps order and bounds."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from finesight.io.parallel import bounded_map, shared_threads
from small import torch_threads


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


def test_there_is_time_for_other_work_while_a_result_is_waited_for() -> None:
    gate, worked = threading.Event(), []

    def read(n: int) -> int:
        assert gate.wait(60)
        return n

    def other_work() -> None:
        worked.append(True)
        gate.set()

    assert [n for n, _ in bounded_map(read, range(3), workers=1, meanwhile=other_work)] == [0, 1, 2]
    assert worked


def test_an_error_comes_in_its_place_and_threads_end() -> None:
    def fail(n: int) -> int:
        if n == 3:
            raise KeyError(n)
        return n

    before = set(threading.enumerate())
    results = bounded_map(fail, range(100), workers=2)
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("threads", "most", "each"), [(4, 2, 2), (5, 2, 2), (1, 2, 1), (3, 8, 1)])
def test_torchs_threads_are_shared(threads: int, most: int, each: int) -> None:
    with torch_threads(threads):
        with shared_threads(most) as pool:
            count = min(threads, most)
            together = threading.Barrier(count)  # tasks that wait for each other must run at once
            found = list(pool.map(lambda _: (together.wait(timeout=30), torch.get_num_threads())[1], range(count)))
            assert found == [each] * count
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == threads


def test_tasks_that_have_not_begun_are_dropped() -> None:
    began: list[int] = []
    tasks: list[Future[None]] = []
    go_on = threading.Event()

    def work(n: int) -> None:
        began.append(n)
        go_on.wait(60 * (n > 0))

    def until_dropped() -> None:
        deadline = time.monotonic() + 5
        while not tasks[-1].cancelled() and time.monotonic() < deadline:
            time.sleep(0.01)
        go_on.set()

    with torch_threads(1), shared_threads(2) as pool:
        tasks += [pool.submit(work, n) for n in range(100)]
        tasks[0].result()
        threading.Thread(target=until_dropped).start()
    assert len(began) <= 2, "one had ended, one was under way"


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux has a thread a priority of its own")
def test_threads_leave_the_cores_to_who_takes_their_results() -> None:
    def priority(_: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority(0)
    assert [value for _, value in bounded_map(priority, range(4), workers=2)] == [19] * 4
    assert priority(0) == before
