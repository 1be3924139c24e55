"""Write what is known into docs/reliability.md, so that nobody types its numbers.

    PYTHONPATH=tests python -m chaos.figures

``make chaos`` calls it at its end.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from chaos.faults import DIED, KILLED, SENTENCE, SKIPPED, SURVIVED
from finesight.paper.markdown import markdown_table, update_page

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "results" / "chaos"


def kills_block(found: dict[str, Any]) -> str:
    """The commands that were run, and what came of the kills."""
    raw = found["raw"]
    runs = [f"$ PYTHONPATH=tests {run['command']}    # {about_run(run)}" for run in raw["runs"]]
    days = sorted({run["date"] for run in raw["runs"]})
    rows = [{"command": name, "kills": count} for name, count in found["kills_by_command"].items()]
    wrong = [f"{trial['workload']}: {problem}" for trial in raw["trials"] for problem in trial["problems"]]
    steps = found["most_steps_repeated"]
    lines = [
        "```console",
        *runs,
        "```",
        "",
        f"{found['machine']}, {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}.",
        "",
        f"- Kills survived: {found['kills']} in {found['trials']} trials, "
        f"{found['kills_in_the_middle_of_a_write']} of them in the middle of a write.",
        f"- Trials in which something was wrong, torn or left over: {found['trials_with_problems']}"
        + (f" ({'; '.join(wrong)})." if wrong else "."),
        f"- Steps of a training that one kill made it repeat, with a checkpoint at every step: {steps} at most.",
        "",
        markdown_table(rows),
    ]
    return "\n".join(lines)


def about_run(run: dict[str, Any]) -> str:
    """What is to be known of a run: when, how long, and of which source, if it was kept."""
    commit = run.get("commit", "")
    source = f"commit {commit[:7]}{'+' * commit.endswith('+')}" if commit else "an earlier source"
    ended = "" if run.get("ended", True) else ", ended before its time"
    return f"{run['date']}, {run.get('minutes', 0)} minutes{ended}, {source}"


def faults_block(found: dict[str, Any]) -> str:
    """Faults of each kind, and how they ended."""
    rows = []
    for kind, outcomes in found["faults_by_kind"].items():
        count = Counter(outcomes)
        rows.append(
            {
                "fault": kind,
                "tried": count.total() - count[SKIPPED],
                "went on, right result": count[SURVIVED],
                "one sentence": count[SENTENCE],
                "ended by the system or a library, then continued": count[KILLED] + count[DIED],
                "not possible here": count[SKIPPED],
                "defects": count["defect"],
            }
        )
    return f"Other faults injected: {sum(int(row['tried']) for row in rows)}.\n\n{markdown_table(rows)}"


def attacks_block(found: dict[str, Any]) -> str:
    """What each hostile picture cost."""
    rows = [
        {
            "what": cost["what"],
            "seconds": cost["seconds"],
            "processor seconds": cost["processor_seconds"],
            "own memory at most, MB": f"{cost['megabytes']:,.0f}",
            "exit code or status": cost["code"],
        }
        for cost in found["costs"]
    ]
    return f"{found['machine']}, {found['date']}:\n\n{markdown_table(rows)}"


def blocks() -> dict[str, str]:
    """Return what goes between the marks of the page, by their names."""
    chaos, attacks = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("chaos", "attacks"))
    return {
        "chaos:kills": kills_block(chaos),
        "chaos:faults": faults_block(chaos),
        "chaos:attacks": attacks_block(attacks),
    }


if __name__ == "__main__":
    print(f"{PAGE.name}: {'new figures' if update_page(PAGE, blocks()) else 'as before'}")
