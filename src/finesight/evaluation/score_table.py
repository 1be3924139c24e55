"""Scores as rows of a table, for the terminal, reports and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finesight.evaluation.metrics import Metric, metrics_of


def score_table(rows: Mapping[str, Mapping[str, Any]], *, intervals: bool = False) -> list[dict[str, object]]:
    """Return a row for each system with the score of every metric that tables show, and its 95 % interval if asked."""
    table = []
    for name, scores in rows.items():
        known = scores.get("ci", {}) if intervals else {}
        row: dict[str, object] = {"system": name}
        for metric in metrics_of(Metric):
            for variant, values in metric.shown_scores(scores) if metric.shown else ():
                ends = known.get(metric.family, {})
                ends = ends.get(variant, {}) if variant else ends
                score, interval = values[metric.key], ends.get(metric.key)
                cell = f"{score:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else score
                row[metric.head(variant)] = cell
                if metric.key in values.get("best_on_test", {}):
                    row[f"best on test {variant} %"] = values["best_on_test"][metric.key]
        table.append(row)
    return table
