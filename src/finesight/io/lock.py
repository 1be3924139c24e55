"""Locks between processes. The kernel releases a lock when its owner ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class Busy(Exception):
    """Another process holds the lock."""


def acquire(file: Path) -> IO[bytes]:
    """Lock ``file``, which is made if it is not there, and return its handle. Closing the handle releases the lock.

    Raises
    ------
    Busy
        If another process holds the lock.
    OSError
        If the file cannot be opened for writing.
    """
    handle = file.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise Busy(str(file)) from None
    return handle


@contextmanager
def locked(file: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock on ``file`` while the block runs; wait for another process if it must.

    ``on_wait`` is called once before waiting, for a message to the user.
    """
    try:
        handle = acquire(file)
    except Busy:
        if on_wait is not None:
            on_wait()
        handle = file.open("ab")
        fcntl.flock(handle, fcntl.LOCK_EX)
    with handle:
        yield
