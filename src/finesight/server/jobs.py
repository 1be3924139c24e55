"""Work that goes on beside the answers: bringing the index up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from finesight.errors import FineSightError

log = logging.getLogger("finesight.server")


@dataclass(frozen=True)
class Stage:
    """How far it is."""

    phase: str
    done: int
    total: int


class Job:
    """One piece of work in a thread of its own. It tells how far it is, and is asked now and then whether to stop."""

    def __init__(self, work: Callable[[Job], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finesight-job", daemon=True)
        self.stage: Stage | None = Stage("listing", 0, 0)  # None when it has ended
        self.problem: str | None = None  # why it failed

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """True when it has ended within that time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stopping(self) -> bool:
        return self._stop.is_set()

    def tell(self, phase: str, done: int, total: int) -> None:
        self.stage = Stage(phase, done, total)

    def _run(self) -> None:
        try:
            self._work(self)
        except FineSightError as error:
            self.problem = " ".join(str(error).split())
            log.error("The index could not be brought up to date: %s", self.problem)
        except Exception:
            self.problem = "The index could not be brought up to date; the server's log says why."
            log.exception("The index could not be brought up to date.")
        finally:
            self.stage = None
