"""Map a function over many items in threads with bounded memory."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from threading import Barrier
from typing import TypeVar

from finesight.io.children import Children

T = TypeVar("T")
R = TypeVar("R")
PAUSE = 0.1  # seconds between two questions whether to stop


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bounded_map(
    function: Callable[[T], R],
    items: Iterable[T],
    workers: int | None = None,
    *,
    ahead: int = 4,
    stop: Callable[[], bool] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[tuple[T, R]]:
    """Yield each item with its result, in order, while a bounded number of others is under way.

    At most ``ahead`` items for each worker are begun before their results are taken, so that memory does not grow with
    the number of items. When the iterator is closed early, items that have not begun are dropped, and child processes
    of those that have are ended.

    Parameters
    ----------
    function
        Called in a thread. What it raises is raised where its result would have been yielded.
    workers
        Threads; by default one for each core. They use the cores that the rest of the process, which takes the results,
        leaves free (on Linux).
    stop
        Called while a result is waited for. Once it returns True, the iterator ends as if it were closed.
    meanwhile
        Called once before a result is waited for that is not there yet: time for other work.
    """
    workers = workers or available_cores()
    waiting = iter(items)
    children = Children()

    def begin() -> None:
        children.adopt_thread()
        _give_way()

    pool = ThreadPoolExecutor(workers, initializer=begin)
    running: deque[tuple[T, Future[R]]] = deque()

    def start(count: int) -> None:
        running.extend((item, pool.submit(function, item)) for item in islice(waiting, count))

    try:
        start(ahead * workers)
        while running:
            item, future = running.popleft()
            if meanwhile is not None and not future.done():
                meanwhile()
            while stop is not None and not future.done():
                wait([future], PAUSE)
                if not future.done() and stop():
                    return
            result = future.result()
            start(1)
            yield item, result
    finally:
        children.end()
        pool.shutdown(wait=True, cancel_futures=True)


def _give_way() -> None:
    """Lower the priority of this thread, where a thread has one of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


@contextmanager
def shared_threads(most: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of up to ``most`` threads among which torch's are divided; at the end, tasks not begun are dropped.

    Two tasks of one thread each take less time than one after the other with two, as they never wait for each other.
    """
    import torch  # searching by onnxruntime does without

    total = torch.get_num_threads()
    workers = min(most, total)
    all_started = Barrier(workers)

    def take_share() -> None:
        torch.get_num_threads()  # the first question in a thread sets its number to that of the process
        torch.set_num_threads(total // workers)
        all_started.wait()

    pool = ThreadPoolExecutor(workers, initializer=take_share)
    try:
        for _ in pool.map(lambda _: None, range(workers)):
            pass
        torch.set_num_threads(total)  # it holds for the calling thread, but also for those to come
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
