"""Ctrl-C and SIGTERM: a command that is stopped ends with one sentence, wherever it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from finesight.errors import Interrupted


class StopSignal(BaseException):
    """A signal to stop has come. Nothing but ``stoppable`` catches it: neither Lightning nor ``except Exception``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable(words: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM within the block into ``Interrupted`` with these words. Blocks may be nested.

    Signals reach the main thread only; in others, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise StopSignal(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except StopSignal as request:
        raise Interrupted(request.number, words()) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
