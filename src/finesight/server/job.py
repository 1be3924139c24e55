"""Run work in the background while the server answers: bringing the index up to date."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.features.types import Embedder
from finesight.io.console import console
from finesight.search.build import IndexUpdate, update_run_index
from finesight.search.engines import open_index
from finesight.server import schemas
from finesight.server.feature_sets import FeatureSets
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

    def pause(self, seconds: float) -> bool:
        """Wait so long, or until the work should stop; return whether it should."""
        return self._stop.wait(seconds)

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


class TrainingJob(BackgroundJob, ABC):
    """A job that trains, too: what the page asks of ``finesight up``. Serving an index needs neither this nor torch."""

    run: Path  # the folder of the training
    judged: Callable[[Path], str | None] | None  # called when a user's clicks have decided; returns the verdict

    @abstractmethod
    def attach(self, features: FeatureSets) -> None:
        """Keep these sets up to date, and decide which is the default."""

    @abstractmethod
    def training(self) -> schemas.Training:
        """Return how far the training is."""

    @abstractmethod
    def request_training(self) -> schemas.Training:
        """Start the training, or continue it; raise 409 if it runs or there is nothing to train."""

    @abstractmethod
    def verdict(self) -> schemas.VerdictResponse | None:
        """Return whether training helped; None if that is not known yet."""


def bring_up_to_date(
    job: BackgroundJob,
    where: str | Path,
    embedder: Embedder,
    folder: str | Path | ImageSource,
    run: Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    leave: Collection[str] = (),
    retry: bool = False,
) -> IndexUpdate:
    """Bring the index ``where`` up to date with its folder while others search it; say so on page and terminal.

    A ``retry`` that finds nothing is not worth a line.
    """
    with closing(open_index(where)) as index:
        report = update_run_index(
            index,
            embedder,
            folder,
            run,
            workers=workers,
            callback=job.report,
            stop=job.stopping,
            leave=leave,
            show=progress,
        )
    if not report.stopped and not (retry and report.is_empty):
        console.print(f"The index is up to date: {report}.", markup=False)
    return report
