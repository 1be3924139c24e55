"""The command line in real processes.

``finesight(...)`` starts ``python -m finesight``, as a user does; importing torch takes it seconds. ``Command`` is a
process forked from a server that has imported everything already: quick, yet as separate and as killable.
"""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

# A network of a few thousand weights on 32 px with a 4×4 map: some 20 ms a step.
TINY = (
    *("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--output-stride", "8"),
    *("--batch-size", "8", "--projections", "4", "--log-every", "1", "--accelerator", "cpu", "--quiet"),
)
# Only for what hangs: a busy machine takes several times as long as a quiet one.
TIMEOUT = float(os.environ.get("FINESIGHT_TEST_TIMEOUT", "300"))
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
PRELOAD = ["pytest", "finesight.cli.main", "finesight.api", "finesight.features.writing", "finesight.report.run_report"]


@dataclass(frozen=True)
class Finished:
    """What a process left: its exit code (negative: the signal that ended it) and what it printed."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """One thread: sums in a fixed order, and no fight over the cores."""
    return {**os.environ, **ONE_THREAD, **more}


def finesight(*args: str | Path, **env: str) -> Finished:
    """``python -m finesight ARGS`` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "finesight", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(**env),
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def start_server() -> None:
    """Unless it runs already. It reads the number of threads once, when it imports torch."""
    before = dict(os.environ)
    os.environ.update(ONE_THREAD)
    try:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _redirected(out: str, err: str, target: Callable[..., None], *args: Any) -> None:
    for descriptor, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY), descriptor)
    target(*args)


def _run_cli(args: list[str], env: dict[str, str], folder: str | None = None) -> None:
    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.argv = ["finesight", *args]
    from finesight.cli.main import main

    main()


class Command:
    """``finesight ARGS``, running."""

    def __init__(self, *args: str | Path, cwd: Path | None = None, **env: str) -> None:
        self._begin(_run_cli, [str(arg) for arg in args], environment(**env), None if cwd is None else str(cwd))

    def _begin(self, target: Callable[..., None], *args: Any) -> None:
        """Call a function in a process of its own, and keep what it prints."""
        self._out, self._err = (_empty_file() for _ in range(2))
        start_server()
        context = multiprocessing.get_context("forkserver")
        self.process = context.Process(target=_redirected, args=(self._out, self._err, target, *args), daemon=True)
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must happen while the command runs."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            running = self.running  # asked first: it may do the last thing it has to do, and end, between the two
            if condition():
                return
            if not running:
                raise AssertionError(f"ended too early: {self.wait()}")
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise AssertionError(f"waited in vain: {self.wait()}")
            time.sleep(0.002)

    def wait(self) -> Finished:
        self.process.join(TIMEOUT)
        late = self.running
        if late:
            self.process.kill()
            self.process.join()
        out, err = (Path(file).read_text() for file in (self._out, self._err))
        for file in (self._out, self._err):
            Path(file).unlink()
        assert not late, f"took longer than {TIMEOUT} s:\n{out}\n{err}"
        code = self.process.exitcode
        assert code is not None
        return Finished(code, out, err)


def command(*args: str | Path, cwd: Path | None = None, **env: str) -> Finished:
    """``finesight ARGS`` to its end, quickly started."""
    return Command(*args, cwd=cwd, **env).wait()


def children_of(process: int) -> list[int]:
    """The processes that a process started."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    return [number for number, parent in parents.items() if parent == process]


def processor_seconds(process: int) -> float:
    """The processor time that a process has had, with that of its children that have ended; 0 if it is gone."""
    with contextlib.suppress(OSError):
        times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return 0.0


class TooLate(Exception):
    """A process had come too far when the signal reached it: what was to be tested did not happen."""


def in_time(attempt: Callable[[Path], None], folder: Path, tries: int = 4) -> None:
    """Test what a signal in the middle of work does, in a new folder again if it came ``TooLate``.

    The work takes half a second, and a busy machine may let a test wait for as long as that.
    """
    for number in range(tries):
        place = folder / f"try-{number}"
        place.mkdir()
        with contextlib.suppress(TooLate):
            return attempt(place)
    raise AssertionError(f"{tries} times the signal came too late")


def attempted(out: Path, *args: str | Path) -> Finished:
    """``finesight train`` without the report: drawing it takes longer than the runs of these tests."""
    running = Command("train", "--out", out, *args)
    running.until(lambda: (out / "config.yaml").exists())
    (out / "report.html").touch()
    return running.wait()


def trained(out: Path, *args: str | Path) -> Finished:
    return succeeded(attempted(out, *args))


def _empty_file() -> str:
    handle, name = tempfile.mkstemp(prefix="finesight-test-")
    os.close(handle)
    return name


def succeeded(done: Finished) -> Finished:
    assert done.code == 0, f"exit code {done.code}\n{done.out}\n{done.err}"
    return done


def refused(done: Finished, *words: str) -> str:
    """The message of a command that must end with exit code 2, a message that has ``words``, and no traceback."""
    assert done.code == 2, f"exit code {done.code}\n{done.out}\n{done.err}"
    assert "Traceback" not in done.err, done.err
    message = " ".join(done.err.split())
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert done.out == ""
    return message


def rows(run: Path) -> list[dict[str, str]]:
    """metrics.csv, read without FineSight."""
    with contextlib.suppress(FileNotFoundError), (run / "metrics.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))
    return []


def killed_while_writing(target: Path) -> None:
    """Let a process begin to write a file, and kill it half way."""
    writer = multiprocessing.get_context("spawn").Process(target=_die_half_way, args=(target,))
    writer.start()
    writer.join()


def _die_half_way(target: Path) -> None:
    from finesight.io.atomic import atomic_path

    with atomic_path(target) as scratch:
        scratch.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
