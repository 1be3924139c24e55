"""Map a function over many items in threads with bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bounded_map(
    function: Callable[[T], R], items: Iterable[T], workers: int | None = None, *, ahead: int = 4
) -> Iterator[tuple[T, R]]:
    """Yield each item with its result, in order, while a bounded number of others is under way.

    At most ``ahead`` items for each worker are begun before their results are taken, so that memory does not grow with
    the number of items. When the iterator is closed early, items that have not begun are dropped.

    Parameters
    ----------
    function
        Called in a thread. What it raises is raised where its result would have been yielded.
    workers
        Threads; by default one for each core.
    """
    workers = workers or available_cores()
    waiting = iter(items)
    pool = ThreadPoolExecutor(workers)
    running: deque[tuple[T, Future[R]]] = deque()

    def start(count: int) -> None:
        running.extend((item, pool.submit(function, item)) for item in islice(waiting, count))

    try:
        start(ahead * workers)
        while running:
            item, future = running.popleft()
            result = future.result()
            start(1)
            yield item, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
