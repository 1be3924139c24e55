"""``PYTHONPATH=tests python -m chaos``: kills and faults, reported as JSON. Exit code 1 if this run found a defect.

What is in ``--out`` already is kept, and each run adds to it: kills, and the faults of a seed that no run had before. A
run that was ended before its time goes on when the same command is given again with the same source.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.faults import KINDS, Fault, inject, parts_of
from chaos.kills import Trial, kill_trials, undisturbed
from chaos.up import UP
from chaos.updates import updates
from chaos.workloads import WORKLOADS, World
from chaos.writes import load_everywhere
from finesight.io.atomic import write_atomic
from finesight.paper.machine import commit, machine


@dataclass
class Report:
    """All that is known so far, of this run (the last one) and of those before."""

    out: Path
    trials: list[Trial] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, out: Path) -> Report:
        if not out.exists():
            return cls(out)
        raw = json.loads(out.read_text())["raw"]
        trials = [Trial(**trial) for trial in raw["trials"]]
        return cls(out, trials, [Fault(**fault) for fault in raw["faults"]], raw["runs"])

    def begin(self, command: str, seed: int | None = None) -> dict[str, Any]:
        """Return the run that the same command left unfinished with the same source, or a new one."""
        source = commit()
        unfinished = bool(self.runs) and not self.run.get("ended", True)
        if unfinished and (self.run["command"], self.run["commit"]) == (command, source):
            return self.run
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        seed = len(self.runs) if seed is None else seed
        self.runs.append(
            {"command": command, "date": date, "commit": source, "machine": machine(), "seed": seed}
            | {"minutes": 0.0, "kills": 0, "parts": [], "ended": False}  # parts of the faults that are done
        )
        return self.run

    @property
    def run(self) -> dict[str, Any]:
        """The facts of the last run."""
        return self.runs[-1]

    def add_trial(self, trial: Trial) -> None:
        self.trials.append(replace(trial, run=len(self.runs) - 1))
        self.run["kills"] += trial.kills

    def add_faults(self, part: str, faults: list[Fault]) -> None:
        self.faults += [replace(fault, run=len(self.runs) - 1) for fault in faults]
        self.run["parts"].append(part)

    @property
    def kills(self) -> Counter[str]:
        count = Counter[str]()
        for trial in self.trials:
            count[trial.workload] += trial.kills
        return count

    @property
    def defects(self) -> int:
        """How many the last run found."""
        last = len(self.runs) - 1
        trials = sum(bool(trial.problems) for trial in self.trials if trial.run == last)
        return trials + sum(fault.is_defect for fault in self.faults if fault.run == last)

    def write(self) -> None:
        outcomes: dict[str, Counter[str]] = {}
        for fault in self.faults:
            outcomes.setdefault(fault.kind, Counter())["defect" if fault.is_defect else fault.outcome] += 1
        moments = [moment for trial in self.trials for moment in trial.moments]
        facts = {
            "machine": machine(),
            "kills": len(moments),
            "kills_in_the_middle_of_a_write": sum(moment.startswith("write") for moment in moments),
            "kills_by_command": dict(self.kills),
            "trials": len(self.trials),
            "trials_with_problems": sum(bool(trial.problems) for trial in self.trials),
            "most_steps_repeated": max((trial.repeated for trial in self.trials), default=0),
            "faults": len(self.faults),
            "faults_by_kind": {kind: dict(counts) for kind, counts in outcomes.items()},
            "raw": {
                "runs": self.runs,
                "trials": [asdict(trial) for trial in self.trials],
                "faults": [asdict(fault) for fault in self.faults],
            },
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.out, json.dumps(facts, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="of moments and faults; without it the number of earlier runs")
    parser.add_argument("--kills", type=int, default=200, help="to survive, beside those of earlier runs")
    parser.add_argument("--each", type=int, default=4, help="kills of one command before it may finish")
    parser.add_argument("--minutes", type=float, default=60, help="after which nothing more is begun")
    parser.add_argument(
        "--without", nargs="*", default=[], help="commands that are left alone; index-milvus needs 450 MB"
    )
    parser.add_argument("--faults", nargs="*", default=list(KINDS), choices=KINDS, help="kinds of other faults")
    parser.add_argument("--faults-for", nargs="*", default=[one.name for one in WORKLOADS], help="these commands")
    parser.add_argument("--count", type=int, default=3, help="faults of a kind for each command")
    parser.add_argument("--all-faults", action="store_true", help="whatever the time")
    parser.add_argument("--out", type=Path, default=Path("results/chaos/chaos.json"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that disks are unmounted and servers ended
    report = Report.read(given.out)
    report.begin(f"python -m chaos {' '.join(sys.argv[1:])}".strip(), given.seed)
    with tempfile.TemporaryDirectory(prefix="finesight-chaos-") as name:
        disturb(given, report, Path(name))
    report.run["ended"] = True
    report.write()
    return 1 if report.defects else 0


def disturb(given: argparse.Namespace, report: Report, root: Path) -> None:
    """Kill and damage until enough is known, or the time is over."""

    run, spent = report.run, report.run["minutes"]

    def left() -> float:
        run["minutes"] = round(spent + (time.monotonic() - start) / 60, 1)
        return float(given.minutes - run["minutes"])

    if not load_everywhere(root):
        tell("no C compiler: nothing is killed in the middle of a write", [])
    kills = given.kills - run["kills"]
    world, allowed = World.make(root / "world"), [one for one in WORKLOADS if one.name not in given.without]
    ours = tuple(one for one in allowed if kills > 0 or (given.faults and one.name in given.faults_for))
    for folder in ("kills", "faults"):
        (root / folder).mkdir()
    known = {one.name: undisturbed(one, world, root / "faults" / f"whole-{one.name}") for one in ours}
    start = time.monotonic()
    if kills > 0:
        with updates(root, len(report.trials), milvus="index-milvus" not in given.without) as more:
            workloads = (*ours, *(one for one in (UP, *more) if one.name not in given.without))
            for one in workloads[len(known) :]:
                known[one.name] = undisturbed(one, world, root / "kills" / f"whole-{one.name}")
            place, seed, earlier = root / "kills", f"{run['seed']}-{len(report.trials)}", report.kills
            for trial in kill_trials(workloads, known, world, place, seed, kills, given.each, left(), earlier):
                report.add_trial(trial)
                tell(f"{trial.workload}: {trial.kills} kills", trial.problems)
                left()
                report.write()
    some = {one.name: known[one.name] for one in ours if one.name in given.faults_for}
    for part in parts_of(given.faults, some):
        if part in run["parts"]:
            continue
        if left() < 0 and not given.all_faults:
            break
        faults = []
        for fault in inject(part, world, root / "faults", some, run["seed"], given.count):
            faults.append(fault)
            tell(f"{fault.kind}, {fault.what}: {fault.outcome}", [fault.words] if fault.is_defect else [])
        report.add_faults(part, faults)
        left()
        report.write()


def tell(words: str, problems: list[str]) -> None:
    print(words, *(f"  DEFECT: {problem}" for problem in problems), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
