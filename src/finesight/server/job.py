"""Run work in the background while the server answers: bringing the index up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from finesight.errors import FineSightError
from finesight.server.schemas import Progress

log = logging.getLogger("finesight.server")


class BackgroundJob:
    """Run one function in a thread. It reports its progress, and asks now and then whether to stop."""

    def __init__(self, work: Callable[[BackgroundJob], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finesight-job", daemon=True)
        self.progress: Progress | None = Progress(phase="listing", done=0, total=0)  # None when the job has ended
        self.problem: str | None = None  # why it failed

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Ask the work to stop, and return whether it ended within that time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stopping(self) -> bool:
        """Return whether the work should stop."""
        return self._stop.is_set()

    def report(self, phase: str, done: int, total: int) -> None:
        """Say how far the work is."""
        self.progress = Progress(phase=phase, done=done, total=total)

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
            self.progress = None
