"""Training in a process of its own, which ends when this one does."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from finesight.io.progress import progress_bar
from finesight.server.schemas import Training
from finesight.training.progress import time_words

PREFIX = "finesight: "  # begins the message of a command that failed
TAIL = 4000  # characters of the log that are searched for it


class TrainingProcess:
    """A command that reads what to train from the first line of its standard input, and stops when that is closed.

    So it stops however this process ends, also when it is killed, and it gets one signal only: a second one would keep
    it from saving. What it says goes to ``log``.
    """

    def __init__(self, command: Sequence[str], request: Mapping[str, Any], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.began = time.time()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for the server, which then ends this one
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def ended(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.poll()

    def stop(self, seconds: float) -> bool:
        """Ask it to save and stop, and return whether it ended within that time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def problem(self) -> str:
        """Return why it failed, in words."""
        code = self._process.returncode
        said = self._log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        if code == 2 and PREFIX in said:
            return " ".join(said.rpartition(PREFIX)[2].split())
        if code < 0:
            return f"It was ended by signal {-code}, perhaps for lack of memory. {self._log} holds what it said."
        return f"It ended with an error; {self._log} says which."


class TrainingBar:
    """How far the training is, in the terminal."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._bar: Progress | None = None

    def show(self, training: Training) -> None:
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
            self._bar = progress_bar(self._wanted, *columns)
            self._bar.start()
            self._bar.add_task("", left="")
        left = "" if training.seconds_left is None else f"{time_words(training.seconds_left)} left"
        task = self._bar.task_ids[0]
        self._bar.update(
            task, description=training.words, completed=training.step, total=training.total or None, left=left
        )

    def hide(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
