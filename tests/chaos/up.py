"""``finesight up`` as a workload: the server and the training that it runs in the background are killed together."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx

from chaos.workloads import WEIGHTS, Workload, World, digest
from finesight.search.engines import open_index
from indexes import contents
from processes import Command, Finished, children_of, processor_seconds
from serving import Serving

SETTINGS = (
    *("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--set", "backbone.output_stride=8"),
    *("--epochs", "4", "--batch-size", "8", "--preset", "paper", "--set", "rationale.projections=4"),
    *("--set", "objective.dim=8", "--set", "validation.every_n_epochs=100"),
    *("--port", "0", "--no-open", "--quiet"),
)


class Up(Workload):
    """A server is never done by itself: it is stopped when the training is done and both indexes are there."""

    kills_itself = False  # its training is another process

    def start(self, world: World, place: Path, **env: str) -> Command:
        return Serving(*self.arguments(world, place), FINESIGHT_CACHE=str(place / "cache"), **env)

    def worked(self, running: Command) -> float:
        assert running.process.pid is not None
        children = children_of(running.process.pid)
        time.sleep(0.01)  # to look at all processes is work, too
        return super().worked(running) + sum(map(processor_seconds, children))

    def finish(self, running: Command) -> Finished:
        assert isinstance(running, Serving)

        def done() -> bool:
            time.sleep(0.05)
            with suppress(httpx.TransportError):
                health = httpx.get(f"{running.url}api/health", timeout=30).json()
                return health["training"]["state"] == "done" and len(health["features"]) == 2
            return False

        running.until(done)
        running.send(signal.SIGINT)
        ended = running.wait()
        return Finished(0 if ended.code == 130 else ended.code, ended.out, ended.err)

    def kill(self, running: Command) -> None:
        assert running.process.pid is not None
        children = children_of(running.process.pid)
        for process in (running.process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 60
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
            time.sleep(0.01)


def _outputs(place: Path) -> dict[str, str]:
    """The weights, and what both indexes hold."""
    found = {}
    for home in (place / "out", place / "out" / "frozen"):
        found[f"{home.name}/{WEIGHTS}"] = digest((home / WEIGHTS).read_bytes())
        index = open_index(home / "index")
        found |= {f"{home.name}/{path}": str(facts[:4]) for path, facts in contents(index).items()}
        index.close()
    return found


UP = Up("up", lambda world, place: ("up", world.images, "--out", place / "out", *SETTINGS), _outputs)
