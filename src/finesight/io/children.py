"""Child processes that a thread waits for, and that others can end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO


class ChildEnded(Exception):
    """A child was ended before it was done: its time was over, or nobody wants its result any more."""


class Children:
    """The children that the threads of one pool wait for."""

    _of_thread = threading.local()

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._ended = threading.Lock(), False

    def adopt_thread(self) -> None:
        """Count the children of this thread from now on. It is the initializer of a pool."""
        self._of_thread.owner = self

    @classmethod
    def here(cls) -> Children:
        """Return where the children of this thread are counted."""
        owner: Children = getattr(cls._of_thread, "owner", None) or cls()
        return owner

    def end(self) -> None:
        """End the children that run; those to come are ended at once."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Count a child."""
        with self._lock:
            self._running.add(child)
            if self._ended:
                child.kill()

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """Forget a child that has ended."""
        with self._lock:
            self._running.discard(child)


def run_module(
    module: str, arguments: Sequence[str], content: IO[bytes] | bytes, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a module of this program in a process of its own, and return its exit code and what it wrote.

    It reads ``content`` from standard input: a file is passed as it is. After so many seconds, and when the pool of
    the calling thread is closed, it is killed; that raises ``ChildEnded``. It finds the modules that we find, but none
    in the working folder, which may be full of other people's files.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", module, *arguments]
    given = content if isinstance(content, bytes) else None
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if isinstance(content, bytes) else content,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
    )
    owner = Children.here()
    owner.add(child)
    try:
        out, _ = child.communicate(given, seconds)
    except subprocess.TimeoutExpired:
        raise ChildEnded(f"it took longer than {seconds:g} seconds") from None
    finally:
        owner.remove(child)
        child.kill()  # nothing happens if it has ended
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if owner._ended:
        raise ChildEnded("it was stopped")
    return subprocess.CompletedProcess(command, child.returncode, out)
