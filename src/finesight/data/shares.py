"""Work on the images of a batch in threads, of which each takes its share of the images."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def in_shares(work: Callable[[slice], None], count: int) -> None:
    """Call ``work`` with slices that together are ``range(count)``, in as many threads as torch may use here."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        work(slice(0, count))
        return
    ends = [count * i // threads for i in range(threads + 1)]
    for _ in _pool(torch.get_num_threads()).map(work, map(slice, ends, ends[1:])):
        pass  # raises what the thread raised


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "views")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
