"""Work on the images of a batch in threads: each thread takes its share of the images and is not split further.

Torch itself would split every single operation between its threads. A view is made by a hundred operations of some
microseconds, too short for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import torch
from torch import Tensor

CACHED = 300_000  # numbers; with temporary ones of the same size about a megabyte


def in_shares(work: Callable[[slice], None], count: int) -> None:
    """Call ``work`` with slices that together are ``range(count)``, in as many threads as torch may use here."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        work(slice(0, count))
        return
    ends = [count * i // threads for i in range(threads + 1)]
    for _ in _pool(torch.get_num_threads()).map(work, map(slice, ends, ends[1:])):
        pass  # raises what the thread raised


def blocks(images: Tensor, share: slice | None = None) -> Iterator[slice]:
    """Split a batch, or a share of it, into slices of as many images as an operation should take at a time.

    On a CPU, these are as many as stay in the cache of a core.
    """
    start, end, _ = (share or slice(None)).indices(len(images))
    size = max(1, CACHED // images[:1].numel() if images.device.type == "cpu" and end > start else end - start)
    return (slice(i, min(i + size, end)) for i in range(start, end, size))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return threads in which torch does not use others."""
    pool = ThreadPoolExecutor(threads, "views", initializer=_stay_alone)
    barrier = Barrier(threads)
    for _ in pool.map(lambda _: barrier.wait(), range(threads)):
        pass  # all have started
    torch.set_num_threads(threads)  # it holds for the calling thread, but also for those to come
    return pool


def _stay_alone() -> None:
    torch.get_num_threads()  # the first question in a thread sets its number to that of the process
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
