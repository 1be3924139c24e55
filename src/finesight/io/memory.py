"""Freed memory: kept for the next step, or given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 1 << 30  # bytes of an allocation that still comes from the heap


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep large freed blocks; return whether it does (other C libraries have no such setting).

    A network on the CPU allocates and frees the same large arrays at every step. By default each comes as fresh pages,
    which the system clears one by one: up to a quarter of the time. The process then keeps its largest size.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, -1))


def give_back_memory() -> None:
    """Make glibc return what is free to the system, even if it keeps freed blocks otherwise."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
