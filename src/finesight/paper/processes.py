"""Commands of FineSight that an experiment starts as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from finesight.errors import FineSightError, Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM)
PAUSE = 0.05  # seconds between two looks at what runs


def run_commands(
    commands: Sequence[Sequence[str]], failed: str, *, jobs: int = 1, variables: Mapping[str, str] | None = None
) -> None:
    """Run ``finesight`` with the words of each command, ``jobs`` of them at a time.

    A signal to stop is passed on to what runs, and nothing new begins. A failure is told when all others are done.

    Raises
    ------
    Interrupted
        If a command was stopped by a signal.
    FineSightError
        With the words ``failed``, if a command has failed.
    """
    waiting, running, codes = deque(commands), list[subprocess.Popen[bytes]](), list[int]()
    passed_on = 0
    with _received_signals() as received:
        while running or (waiting and not received):
            while waiting and len(running) < jobs and not received:
                words = [sys.executable, "-m", "finesight", *waiting.popleft()]
                child = subprocess.Popen(words, start_new_session=True, env={**os.environ, **(variables or {})})
                running.append(child)
            for number in received[passed_on:]:  # not by the handler, which does not know a child that just began
                passed_on += 1
                for child in running:
                    child.send_signal(number)
            codes += [child.returncode for child in running if child.poll() is not None]
            running[:] = [child for child in running if child.returncode is None]
            time.sleep(PAUSE if running else 0)
    stopped = [number for number in STOPS if number in received or {128 + number, -number} & set(codes)]
    if stopped:
        raise Interrupted(stopped[0], "The bench has stopped with it.")
    if any(codes):
        raise FineSightError(failed)


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Yield the list of the signals to stop that came. A terminal would send one to all, and two mean "at once"."""
    received: list[int] = []
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in STOPS]
    try:
        yield received
    finally:
        for number, handler in zip(STOPS, before, strict=True):
            signal.signal(number, handler)
