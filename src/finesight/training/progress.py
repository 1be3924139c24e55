"""How far a run is, in ``progress.json`` of its folder: for the search page, and for scripts."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from finesight.errors import Interrupted
from finesight.io.atomic import write_atomic
from finesight.io.console import format_count

Phase = Literal[
    "decoding", "preparing", "training", "checking", "saving", "report", "done", "stopped", "failed"
]  # the last three end a run
EVERY = 1.0  # seconds between two writes of the same phase
RECENT = 20  # steps that an estimate is made from: the first ones of a run are slower than the others


class RunProgress:
    """Writes ``progress.json`` whole, at most once a second, and at once when a phase begins.

    ``words`` says what is going on, in words for people. Numbers that are not known yet are null, never zero or NaN.
    """

    def __init__(self, file: Path | None) -> None:
        """``file`` is None where nothing is to be written: in all processes of a training but the first."""
        self.file = file
        self.phase: Phase | None = None
        self.words = "starting"
        before = None if file is None else read_progress(file)
        self.step, self.total = (int((before or {}).get(name) or 0) for name in ("step", "total"))
        self._written = -math.inf

    def tell(
        self,
        phase: Phase,
        words: str,
        step: int | None = None,
        total: int | None = None,
        *,
        images_per_second: float | None = None,
        seconds_left: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Say what is going on; ``step`` and ``total`` stay as they were unless given. While decoding, they are images.

        The total is 0 where it is not known.
        """
        now = time.monotonic()
        self.step, self.total = (old if new is None else new for old, new in ((self.step, step), (self.total, total)))
        due = phase != self.phase or self.step == self.total or now - self._written >= EVERY
        self.phase, self.words = phase, words
        if self.file is None or not due:
            return
        self._written = now
        numbers = {"images_per_second": images_per_second, "seconds_left": seconds_left, "loss": loss}
        known = {name: value if value is not None and math.isfinite(value) else None for name, value in numbers.items()}
        facts = {"phase": phase, "words": words, "step": self.step, "total": self.total, **known}
        with suppress(OSError):  # a full disk is the checkpoint's to report
            write_atomic(self.file, json.dumps({**facts, "updated": time.time()}) + "\n")

    def stopped(self) -> str:
        """Return the sentence with which a run ends that is stopped now."""
        return f"Stopped ({self.words}). What is done is kept; the same command continues."

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Say so if the block ends before the run does: stopped by the user, or by an error."""
        try:
            yield
        except Interrupted as stop:
            self.tell("stopped", str(stop))
            raise
        except Exception as error:
            self.tell("failed", str(error))
            raise

    def tell_decoding(self, done: int, total: int) -> None:
        """Say how many images are decoded."""
        if self.phase != "decoding":
            self._pace = Pace(window=500)
        seconds = self._pace.seconds(done) if done else None
        self.tell(
            "decoding",
            f"reading {format_count(total, 'image')}",
            done,
            total,
            images_per_second=None if not seconds else 1 / seconds,
            seconds_left=None if seconds is None else (total - done) * seconds,
        )


class Pace:
    """How long a step takes, by the last ``window`` of them."""

    def __init__(self, start: int = 0, window: int = RECENT) -> None:
        self._marks = deque([(start, time.monotonic())], window + 1)

    def seconds(self, done: int) -> float:
        """Return seconds per step; ``done`` of them are done now, more than at the last call."""
        self._marks.append((done, time.monotonic()))
        (first, began), (last, now) = self._marks[0], self._marks[-1]
        return (now - began) / max(1, last - first)


def read_progress(file: Path) -> dict[str, Any] | None:
    """Return what ``progress.json`` says; None if there is none, or it cannot be read."""
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def rate_words(images_per_second: float) -> str:
    """Return a rate with the digits that tell: 0.43, 4.3 or 43 images/s."""
    digits = 0 if images_per_second >= 10 else 1 if images_per_second >= 1 else 2
    return f"{images_per_second:.{digits}f} images/s"


def time_words(seconds: float) -> str:
    """Return a time as 0:05:12."""
    return str(timedelta(seconds=math.ceil(seconds)))
