"""SIGKILL at random moments; afterwards the outputs must be those of a process that nothing disturbed."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.workloads import Workload, World, repeated_steps
from chaos.writes import AT, COUNT, count_in
from processes import Command

IDLE = 5.0  # seconds without work after which a command that waits is killed


@dataclass
class Trial:
    """One command that was killed a few times and then finished."""

    workload: str
    moments: list[str] = field(default_factory=list)  # of each kill: processor time, or the number of a write
    repeated: int = 0  # steps of a training that were done again, at most, after one kill
    problems: list[str] = field(default_factory=list)
    run: int | None = None  # its place in the list of runs; None: an earlier form of the harness did not keep it

    @property
    def kills(self) -> int:
        return len(self.moments)


@dataclass(frozen=True)
class Undisturbed:
    """A command that is left alone: its outputs, its processor time, and how often it changes a file."""

    outputs: dict[str, str]
    seconds: float
    writes: int


def undisturbed(workload: Workload, world: World, place: Path) -> Undisturbed:
    """Run a command and leave it alone."""
    workload.begin(world, place)
    counted = place.with_name(f"{place.name}.writes")
    running = workload.start(world, place, **{COUNT: str(counted)})
    done, seconds = workload.finish_and_time(running)
    assert done.code == 0, done
    return Undisturbed(workload.outputs(place), seconds, count_in(counted))


def kill_after(workload: Workload, running: Command, seconds: float) -> bool:
    """Kill a command that has worked for so many seconds; return False if it had ended before.

    Its processor time counts, not the time of day: where it is then does not depend on how busy the machine is. One
    that waits for others, as a server does, is killed when it has not worked for a while.
    """
    last, idle_since = 0.0, time.monotonic()
    while running.running:
        worked = workload.worked(running)
        if worked >= seconds or time.monotonic() - idle_since > IDLE:
            break
        if worked > last + 0.05:
            last, idle_since = worked, time.monotonic()
        time.sleep(0.001)
    killed = running.running
    if killed:
        workload.kill(running)
    return running.wait().code == -signal.SIGKILL and killed


def kill_trial(
    workload: Workload, world: World, place: Path, draw: random.Random, known: Undisturbed, kills: int
) -> Trial:
    """Kill the command up to ``kills`` times, then let it finish.

    Half of the trials kill it in the middle of something that changes files. The others kill it after some time: half
    of these soon, so that it comes to its end in small steps, and half at any time up to its end.
    """
    trial = Trial(workload.name)
    workload.begin(world, place)
    kind = draw.choice(["write", "write", "soon", "any"] if known.writes and workload.kills_itself else ["soon", "any"])
    for _ in range(kills):
        if kind == "write":
            number = draw.randint(1, known.writes)
            moment = f"write {number}"
            killed = workload.start(world, place, **{AT: str(number)}).wait().code == -signal.SIGKILL
        else:
            seconds = draw.uniform(0, known.seconds * (1 if kind == "any" else 2 / (kills + 1)))
            moment = f"{seconds:.3f} s"
            killed = kill_after(workload, workload.start(world, place), seconds)
        if not killed:
            break  # there is nothing left to disturb
        trial.moments.append(moment)
        trial.problems += [f"torn after a kill at {moment}: {torn}" for torn in workload.find_torn(place)]
        if workload.trains:
            trial.repeated = max(trial.repeated, repeated_steps(place))
    done = workload.finish(workload.start(world, place))
    if done.code or "Traceback" in done.err:
        trial.problems.append(f"the last start ended with {done.code}: {done.err[-500:]}")
    elif (found := workload.outputs(place)) != (want := workload.expected(known.outputs)):
        other = sorted(name for name in {**found, **want} if found.get(name) != want.get(name))
        trial.problems.append(f"other outputs: {', '.join(other[:5])}")
    if trial.repeated > 1:  # a checkpoint is written at every step
        trial.problems.append(f"{trial.repeated} steps were repeated after one kill")
    trial.problems += workload.find_torn(place)
    trial.problems += [f"left over: {name}" for name in workload.find_left_over(place)]
    return trial


def kill_trials(
    workloads: Sequence[Workload],
    known: dict[str, Undisturbed],
    world: World,
    root: Path,
    seed: int | str,
    kills: int,
    each: int,
    minutes: float,
    before: Counter[str] | None = None,
) -> Iterator[Trial]:
    """Yield trials until so many more kills were survived, or the time is over: next is what was killed the least.

    ``before`` counts kills of earlier runs: they decide what is next, and are none of the ``kills``.
    """
    draw, count, number = random.Random(seed), Counter(before or {}), 0
    kills += count.total()
    order = {one.name: one for one in workloads}
    trials = Counter(dict.fromkeys(order, 0))
    end = time.monotonic() + 60 * minutes
    while count.total() < kills and time.monotonic() < end:
        workload = order[min(order, key=lambda name: (count[name], trials[name]))]
        place = root / f"trial-{number}"
        trial = kill_trial(workload, world, place, draw, known[workload.name], each)
        if not trial.problems:
            shutil.rmtree(place)
        count[workload.name] += trial.kills
        trials[workload.name] += 1
        number += 1
        yield trial
