"""Results as tables: mean ± std over seeds beside the paper's number, and paired differences between rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finesight.evaluation.bootstrap import Difference, paired_bootstrap_seeds
from finesight.evaluation.metrics import retrieval_metrics
from finesight.paper.published import look_up, paper_row
from finesight.paper.rows import BIRD_ROWS, PROJECTIONS, Row
from finesight.paper.selection import is_frozen
from finesight.paper.store import Results, ResultStore

METRICS: dict[str, tuple[str, ...]] = {
    **{metric.title: ("retrieval", metric.key) for metric in retrieval_metrics()},
    "linear 100 %": ("linear", "100", "top1"),
    "50 %": ("linear", "50", "top1"),
    "20 %": ("linear", "20", "top1"),
    "attention on bird": ("localization", "inside"),
}
PAIRED = {metric.title: metric for metric in retrieval_metrics()}
RESAMPLES = 2000  # an interval's ends are known to 2 % of its length, and a whole table takes seconds
OURS = "lcr"
CURVE = {k: f"lcr-k{k}" for k in PROJECTIONS}  # rows that are drawn, not listed
COMPARED = tuple(name for name in BIRD_ROWS if name != OURS and name not in CURVE.values())


def value(result: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of a result, or of a row of the paper; None where it was not measured."""
    number = look_up(result, METRICS[metric])
    return None if number is None else float(number)


def values(seeds: Mapping[int, Mapping[str, Any]], metric: str) -> list[float]:
    """Return a metric of every seed that has it."""
    numbers = (value(seeds[seed], metric) for seed in sorted(seeds))
    return [number for number in numbers if number is not None]


def mean_and_std(numbers: Sequence[float], sign: str = "") -> str:
    """Format mean ± sample standard deviation; the mean alone for a single seed."""
    if not numbers:
        return "–"
    mean = f"{np.mean(numbers):{sign}.2f}"
    return mean if len(numbers) == 1 else f"{mean} ± {np.std(numbers, ddof=1):.2f}"


def score_rows(results: Results, rows: Mapping[str, Row] = BIRD_ROWS) -> list[dict[str, str]]:
    """Return a line for each of ``rows`` that has results, with the paper's number in brackets."""
    lines = []
    for name, row in rows.items():
        if name not in results:
            continue
        paper = paper_row(row.paper) if row.paper else {}
        line = {"system": row.label, "name": name, "seeds": str(len(results[name]))}
        for metric in METRICS:
            printed = value(paper, metric)
            line[metric] = mean_and_std(values(results[name], metric)) + (
                "" if printed is None else f" ({printed:.2f})"
            )
        lines.append(line)
    return lines


def seed_pairs(results: Results, first: str, second: str) -> list[tuple[int, int]]:
    """Return the seeds to compare: those both rows have. The only seed of a frozen row stands beside each other one."""
    a, b = sorted(results[first]), sorted(results[second])
    if is_frozen(BIRD_ROWS[first].training) != is_frozen(BIRD_ROWS[second].training):
        return [(seed, other) for seed in a for other in b]
    return [(seed, seed) for seed in a if seed in b]


def difference(store: ResultStore, results: Results, first: str, second: str, metric: str) -> Difference:
    """Return ``second`` minus ``first``, paired by query and averaged over the seeds."""
    key, scale = PAIRED[metric].key, PAIRED[metric].scale
    pairs = [(store.per_query(first, a), store.per_query(second, b)) for a, b in seed_pairs(results, first, second)]
    known = [(a[key], b[key]) for a, b in pairs if key in a and key in b]
    return paired_bootstrap_seeds(known, scale=scale, resamples=RESAMPLES)


def seed_differences(results: Results, first: str, second: str, metric: str) -> list[float]:
    """Return ``second`` minus ``first`` for every pair of seeds."""
    pairs = seed_pairs(results, first, second)
    numbers = [(value(results[first][a], metric), value(results[second][b], metric)) for a, b in pairs]
    return [b - a for a, b in numbers if a is not None and b is not None]


def difference_rows(store: ResultStore, results: Results) -> list[dict[str, str]]:
    """Return what LCR gains over each other row: mean and std over seeds, and the interval over queries."""
    lines = []
    for first in COMPARED:
        if first not in results or OURS not in results:
            continue
        line = {"compared with": BIRD_ROWS[first].label, "name": first}
        for metric in METRICS:
            gains = seed_differences(results, first, OURS, metric)
            line[metric] = mean_and_std(gains, "+")
            if metric in PAIRED and gains:
                interval = difference(store, results, first, OURS, metric)
                line[metric] += f" [{interval.low:+.2f}, {interval.high:+.2f}]"
        lines.append(line)
    return lines
