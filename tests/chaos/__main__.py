"""``PYTHONPATH=tests python -m chaos``: kills and faults, reported as JSON. Exit code 1 if there was a defect."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from chaos.faults import KINDS, Fault, inject
from chaos.kills import Trial, kill_trials, undisturbed
from chaos.up import UP
from chaos.workloads import WORKLOADS, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=150, help="to survive")
    parser.add_argument("--each", type=int, default=4, help="kills of one command before it may finish")
    parser.add_argument("--minutes", type=float, default=60, help="after which no kill is begun")
    parser.add_argument("--faults", nargs="*", default=list(KINDS), choices=KINDS, help="kinds of other faults")
    parser.add_argument("--count", type=int, default=3, help="faults of a kind for each command")
    parser.add_argument("--out", type=Path, default=Path("results/chaos/chaos.json"))
    given = parser.parse_args()
    start, trials, faults = time.monotonic(), list[Trial](), list[Fault]()
    with tempfile.TemporaryDirectory(prefix="finesight-chaos-") as name:
        root = Path(name)
        world = World.make(root / "world")
        (root / "kills").mkdir()
        for trial in kill_trials(
            (*WORKLOADS, UP), world, root / "kills", given.seed, given.kills, given.each, given.minutes
        ):
            trials.append(trial)
            tell(f"{trial.workload}: {trial.kills} kills", trial.problems)
            write(given, start, trials, faults)
        (root / "faults").mkdir()
        known = {one.name: undisturbed(one, world, root / "faults" / f"whole-{one.name}")[0] for one in WORKLOADS}
        for fault in inject(tuple(given.faults), world, root / "faults", known, given.seed, given.count):
            faults.append(fault)
            tell(f"{fault.kind}, {fault.what}: {fault.outcome}", [fault.words] if fault.is_defect else [])
            write(given, start, trials, faults)
    return 1 if any(trial.problems for trial in trials) or any(fault.is_defect for fault in faults) else 0


def tell(words: str, problems: list[str]) -> None:
    print(words, *(f"  DEFECT: {problem}" for problem in problems), sep="\n", flush=True)


def write(given: argparse.Namespace, start: float, trials: list[Trial], faults: list[Fault]) -> None:
    """Write all that is known so far."""
    kills: Counter[str] = Counter()
    for trial in trials:
        kills[trial.workload] += trial.kills
    outcomes: dict[str, Counter[str]] = {}
    for fault in faults:
        outcomes.setdefault(fault.kind, Counter())["defect" if fault.is_defect else fault.outcome] += 1
    facts = {
        "command": f"python -m chaos {' '.join(sys.argv[1:])}".strip(),
        "seed": given.seed,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "minutes": round((time.monotonic() - start) / 60, 1),
        "kills": sum(kills.values()),
        "kills_by_command": dict(kills),
        "trials": len(trials),
        "trials_with_problems": sum(bool(trial.problems) for trial in trials),
        "most_steps_repeated": max((trial.repeated for trial in trials), default=0),
        "faults": len(faults),
        "faults_by_kind": {kind: dict(counts) for kind, counts in outcomes.items()},
        "raw": {"trials": [asdict(trial) for trial in trials], "faults": [asdict(fault) for fault in faults]},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
