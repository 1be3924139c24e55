"""SIGKILL at random moments; afterwards the outputs must be those of a process that nothing disturbed."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.workloads import Workload, World, find_torn, repeated_steps
from processes import Command


@dataclass
class Trial:
    """One command that was killed a few times and then finished."""

    workload: str
    moments: list[float] = field(default_factory=list)  # seconds from its start to each kill
    repeated: int = 0  # steps of a training that were done again, at most, after one kill
    problems: list[str] = field(default_factory=list)
    ended: float | None = None  # seconds after which a start had ended before it could be killed

    @property
    def kills(self) -> int:
        return len(self.moments)


def undisturbed(workload: Workload, world: World, place: Path) -> tuple[dict[str, str], float]:
    """Return the outputs of a command that is left alone, and the seconds it takes."""
    workload.begin(world, place)
    start = time.monotonic()
    done = workload.finish(workload.start(world, place))
    seconds = time.monotonic() - start
    assert done.code == 0, done
    return workload.outputs(place), seconds


def kill_at(workload: Workload, running: Command, moment: float) -> bool:
    """Kill a command after so many seconds; return False if it had ended before."""
    end = time.monotonic() + moment
    while time.monotonic() < end:
        if not running.running:
            break
        time.sleep(0.001)
    killed = running.running
    if killed:
        workload.kill(running)
    done = running.wait()
    return killed and done.code == -signal.SIGKILL


def kill_trial(
    workload: Workload, world: World, place: Path, draw: random.Random, seconds: float, kills: int, want: dict[str, str]
) -> Trial:
    """Kill the command up to ``kills`` times at random moments, then let it finish.

    A start goes on where the one before it was killed, so each runs for a share of the time that the command takes: the
    last kills come near its end.
    """
    trial = Trial(workload.name)
    workload.begin(world, place)
    for _ in range(kills):
        moment = draw.uniform(0, 2 * seconds / (kills + 1))
        start = time.monotonic()
        if not kill_at(workload, workload.start(world, place), moment):
            trial.ended = time.monotonic() - start
            break  # there is nothing left to disturb
        trial.moments.append(round(moment, 3))
        trial.problems += [f"torn after a kill at {moment:.3f} s: {torn}" for torn in find_torn(place)]
        if workload.trains:
            trial.repeated = max(trial.repeated, repeated_steps(place))
    done = workload.finish(workload.start(world, place))
    if done.code or "Traceback" in done.err:
        trial.problems.append(f"the last start ended with {done.code}: {done.err[-500:]}")
    elif (found := workload.outputs(place)) != want:
        other = sorted(name for name in {**found, **want} if found.get(name) != want.get(name))
        trial.problems.append(f"other outputs: {', '.join(other[:5])}")
    if trial.repeated > 1:  # a checkpoint is written at every step
        trial.problems.append(f"{trial.repeated} steps were repeated after one kill")
    trial.problems += [f"left over: {path.name}" for path in place.rglob("*") if ".tmp" in path.name]
    return trial


def kill_trials(
    workloads: tuple[Workload, ...], world: World, root: Path, seed: int, kills: int, each: int, minutes: float
) -> Iterator[Trial]:
    """Yield trials of all workloads in turn until so many kills were survived, or the time is over."""
    draw, total, number = random.Random(seed), 0, 0
    known = {one.name: undisturbed(one, world, root / f"whole-{one.name}") for one in workloads}
    end = time.monotonic() + 60 * minutes
    while total < kills and time.monotonic() < end:
        workload = workloads[number % len(workloads)]
        want, seconds = known[workload.name]
        place = root / f"trial-{number}"
        trial = kill_trial(workload, world, place, draw, seconds, each, want)
        if not trial.problems:
            shutil.rmtree(place)
        if trial.ended is not None and not trial.kills:  # the machine is not as busy as it was
            known[workload.name] = want, trial.ended
        total, number = total + trial.kills, number + 1
        yield trial
