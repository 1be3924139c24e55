"""``PYTHONPATH=tests python -m chaos``: kills and faults, reported as JSON. Exit code 1 if this run found a defect.

It can be made in pieces: what is in ``--out`` already is kept, and the next run goes on from there. Another seed makes
other faults.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from chaos.faults import KINDS, Fault, inject, parts_of
from chaos.kills import Trial, kill_trials, undisturbed
from chaos.up import UP
from chaos.updates import updates
from chaos.workloads import WORKLOADS, World
from chaos.writes import load_everywhere
from finesight.paper.machine import machine


@dataclass
class Report:
    """All that is known so far, of this run and of those before."""

    out: Path
    trials: list[Trial] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # of the faults, that are done, with their seed
    runs: list[dict[str, object]] = field(default_factory=list)

    @classmethod
    def read(cls, out: Path) -> Report:
        if not out.exists():
            return cls(out)
        raw = json.loads(out.read_text())["raw"]
        trials = [Trial(**trial) for trial in raw["trials"]]
        return cls(out, trials, [Fault(**fault) for fault in raw["faults"]], raw["parts"], raw["runs"])

    @property
    def kills(self) -> Counter[str]:
        count = Counter[str]()
        for trial in self.trials:
            count[trial.workload] += trial.kills
        return count

    @property
    def defects(self) -> int:
        return sum(bool(trial.problems) for trial in self.trials) + sum(fault.is_defect for fault in self.faults)

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
                "parts": self.parts,
                "faults": [asdict(fault) for fault in self.faults],
            },
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200, help="to survive, with those of earlier runs")
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
    earlier = report.defects
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    report.runs.append({"command": f"python -m chaos {' '.join(sys.argv[1:])}".strip(), "date": date})
    with tempfile.TemporaryDirectory(prefix="finesight-chaos-") as name:
        disturb(given, report, Path(name))
    report.write()
    return 1 if report.defects > earlier else 0


def disturb(given: argparse.Namespace, report: Report, root: Path) -> None:
    """Kill and damage until enough is known, or the time is over."""

    def left() -> float:
        report.runs[-1]["minutes"] = round((time.monotonic() - start) / 60, 1)
        return given.minutes - (time.monotonic() - start) / 60

    if not load_everywhere(root):
        tell("no C compiler: nothing is killed in the middle of a write", [])
    world, ours = World.make(root / "world"), tuple(one for one in WORKLOADS if one.name not in given.without)
    for folder in ("kills", "faults"):
        (root / folder).mkdir()
    known = {one.name: undisturbed(one, world, root / "faults" / f"whole-{one.name}") for one in ours}
    start = time.monotonic()
    seed = f"{given.seed}-{len(report.trials)}"
    if report.kills.total() < given.kills:
        with updates(root, len(report.trials), milvus="index-milvus" not in given.without) as more:
            workloads = (*ours, *(one for one in (UP, *more) if one.name not in given.without))
            for one in workloads[len(known) :]:
                known[one.name] = undisturbed(one, world, root / "kills" / f"whole-{one.name}")
            place, earlier = root / "kills", report.kills
            for trial in kill_trials(workloads, known, world, place, seed, given.kills, given.each, left(), earlier):
                report.trials.append(trial)
                tell(f"{trial.workload}: {trial.kills} kills", trial.problems)
                left()
                report.write()
    outputs = {one.name: known[one.name].outputs for one in ours if one.name in given.faults_for}
    for part in parts_of(given.faults, outputs):
        done = f"seed {given.seed}: {part}"
        if done in report.parts:
            continue
        if left() < 0 and not given.all_faults:
            break
        for fault in inject(part, world, root / "faults", outputs, given.seed, given.count):
            report.faults.append(fault)
            tell(f"{fault.kind}, {fault.what}: {fault.outcome}", [fault.words] if fault.is_defect else [])
        report.parts.append(done)
        left()
        report.write()


def tell(words: str, problems: list[str]) -> None:
    print(words, *(f"  DEFECT: {problem}" for problem in problems), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
