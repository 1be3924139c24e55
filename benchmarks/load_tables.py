"""Write the tables of docs/load.md from what benchmarks/load.py measured.

    python benchmarks/load_tables.py                    # results/load/hour.json and peer.json

The sentences around them are a person's: read them again when the numbers are new.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from finesight.paper.markdown import markdown_table, update_page

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "load.md", ROOT / "results" / "load"
NAMES = {"memory_mb": "resident (median)", "own_mb": "of it the server's own"}


def span(ms: float) -> str:
    """Return a time as people say it."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def requests_table(found: dict[str, Any]) -> str:
    rows = []
    for name, route in found["routes"].items():
        times = {label: span(route[f"{label}_ms"]) for label in ("p50", "p95", "p99")}
        counts = {label: f"{route[label]:,}" for label in ("refused", "errors", "wrong")}
        rows.append({"request": name, "answered": f"{route['answered']:,}", **times, **counts})
    whole = {label: f"{found[label]:,}" for label in ("refused", "errors", "wrong")}
    rows.append({"request": "all", "answered": f"{found['answered']:,}", "p50": "", "p95": "", "p99": "", **whole})
    return markdown_table(rows)


def levels_table(found: dict[str, Any]) -> str:
    rows = []
    for clients, level in found["levels"].items():
        refusal = level["refusal_ms"]
        told = f"{span(refusal['p50_ms'])} / {span(refusal['p99_ms'])}" if refusal else "–"
        rows.append(
            {
                "clients": clients,
                "answers in a second": f"{level['answers_per_second']:.0f}",
                **{label: span(level[f"{label}_ms"]) for label in ("p50", "p95", "p99")},
                "refused": f"{level['refused_share']:.1%}".replace("%", " %"),
                "a refusal takes (p50 / p99)": told,
            }
        )
    return markdown_table(rows)


def attacks_table(found: dict[str, Any]) -> str:
    def told(answers: dict[str, int]) -> str:
        return ", ".join(f"{count} × {'none' if code == '0' else code}" for code, count in answers.items())

    lines = [f"| {name} | {told(answers)} |" for name, answers in found["attacks"].items()]
    count = sum(sum(answers.values()) for answers in found["attacks"].values())
    return "\n".join([f"{count:,} attacks.", "", "| attack | answers |", "|:---|:---|", *lines])


def memory_table(found: dict[str, Any]) -> str:
    rows = []
    for name, label in NAMES.items():
        trend = found["memory"][name]
        quarters = dict(zip(("first quarter", "second", "third", "last"), trend["medians_of_quarters"], strict=True))
        slope = f"{trend['slope_per_hour']:+,.0f} an hour".replace("-", "−")
        before, after = (found["idle"][when][name] for when in ("before", "after"))
        rows.append(
            {
                "MB": label,
                **{quarter: f"{value:,.0f}" for quarter, value in quarters.items()},
                "slope over the last three quarters": slope,
                "idle, before → after": f"{before:,.0f} → {after:,.0f}",
            }
        )
    return markdown_table(rows)


def peer_table(found: dict[str, Any]) -> str:
    lines = ["| clients | | `finesight serve` | plain server |", "|---:|:---|---:|---:|"]
    sides = found["finesight"], found["plain"]
    for level in (name for name in sides[0] if name.endswith("_clients")):
        ours = [side[level] for side in sides]
        rows = {
            "processor time of the server for an answer": [f"{one['processor_ms_per_answer']:.1f} ms" for one in ours],
            "answers in a second": [f"{one['answers_per_second']:.0f}" for one in ours],
            "refused": [f"{one['refused']:,}" for one in ours],
            "resident memory, own part": [f"{one['memory_mb']:,.0f}, {one['own_mb']:,.0f} MB" for one in ours],
        }
        for route in ours[0]["routes"]:
            times = [one["routes"][route] for one in ours]
            rows[f"{route}: p50 / p99"] = [f"{span(one['p50_ms'])} / {span(one['p99_ms'])}" for one in times]
        first = level.partition("_")[0]
        for what, (one, other) in rows.items():
            lines.append(f"| {first} | {what} | {one} | {other} |")
            first = ""
    return "\n".join(lines)


def blocks() -> dict[str, str]:
    """Return what goes between the marks of the page, by their names."""
    hour, peer = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("hour", "peer"))
    return {
        "load:requests": requests_table(hour),
        "load:levels": levels_table(hour),
        "load:attacks": attacks_table(hour),
        "load:memory": memory_table(hour),
        "load:peer": peer_table(peer),
    }


if __name__ == "__main__":
    print(f"{PAGE.name}: {'new tables' if update_page(PAGE, blocks()) else 'as before'}")
