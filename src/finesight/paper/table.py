"""Results as tables: mean ± std over seeds beside the paper's number, and paired differences between systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from finesight.evaluation.bootstrap import Difference, paired_bootstrap_seeds
from finesight.evaluation.metrics import retrieval_metrics
from finesight.paper.published import paper_row
from finesight.paper.results import ResultFiles, Results
from finesight.paper.systems import PROJECTIONS, SYSTEMS, is_frozen

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
COMPARED = tuple(name for name in SYSTEMS if name != OURS and name not in CURVE.values())


def value(result: dict[str, Any], metric: str) -> float | None:
    """A metric of a result, or of a row of the paper; None where it was not measured."""
    here: Any = result
    for key in METRICS[metric]:
        here = here.get(key) if isinstance(here, dict) else None
    return None if here is None else float(here)


def values(seeds: dict[int, dict[str, Any]], metric: str) -> list[float]:
    """Over the seeds that have it."""
    found = (value(seeds[seed], metric) for seed in sorted(seeds))
    return [number for number in found if number is not None]


def spread(numbers: Sequence[float], sign: str = "") -> str:
    """Mean ± sample standard deviation; the mean alone of a single seed."""
    if not numbers:
        return "–"
    mean = f"{np.mean(numbers):{sign}.2f}"
    return mean if len(numbers) == 1 else f"{mean} ± {np.std(numbers, ddof=1):.2f}"


def score_rows(results: Results) -> list[dict[str, str]]:
    """A row for every system that has results, in the table's order, and the paper's number in brackets."""
    rows = []
    for name, system in SYSTEMS.items():
        if name not in results:
            continue
        paper = paper_row(system.paper) if system.paper else {}
        row = {"system": system.words, "name": name, "seeds": str(len(results[name]))}
        for metric in METRICS:
            printed = value(paper, metric)
            row[metric] = spread(values(results[name], metric)) + ("" if printed is None else f" ({printed:.2f})")
        rows.append(row)
    return rows


def seed_pairs(results: Results, first: str, second: str) -> list[tuple[int, int]]:
    """The seeds to compare: those both have. A frozen network's only one stands beside each of the other's."""
    a, b = sorted(results[first]), sorted(results[second])
    if is_frozen(SYSTEMS[first].network) != is_frozen(SYSTEMS[second].network):
        return [(seed, other) for seed in a for other in b]
    return [(seed, seed) for seed in a if seed in b]


def difference(files: ResultFiles, results: Results, first: str, second: str, metric: str) -> Difference:
    """``second`` minus ``first``, paired by query and averaged over the seeds."""
    key, scale = PAIRED[metric].key, PAIRED[metric].scale
    pairs = [(files.per_query(first, a), files.per_query(second, b)) for a, b in seed_pairs(results, first, second)]
    known = [(a[key], b[key]) for a, b in pairs if key in a and key in b]
    return paired_bootstrap_seeds(known, scale=scale, resamples=RESAMPLES)


def seed_differences(results: Results, first: str, second: str, metric: str) -> list[float]:
    """``second`` minus ``first``, seed by seed."""
    pairs = seed_pairs(results, first, second)
    found = [(value(results[first][a], metric), value(results[second][b], metric)) for a, b in pairs]
    return [b - a for a, b in found if a is not None and b is not None]


def difference_rows(
    files: ResultFiles, results: Results, second: str = OURS, firsts: Sequence[str] = COMPARED
) -> list[dict[str, str]]:
    """What ``second`` gains over each of ``firsts``: mean and std over seeds, and the interval over queries."""
    rows = []
    for first in firsts:
        if first not in results or second not in results or first == second:
            continue
        row = {"compared with": SYSTEMS[first].words, "name": first}
        for metric in METRICS:
            gains = seed_differences(results, first, second, metric)
            row[metric] = spread(gains, "+")
            if metric in PAIRED and gains:
                found = difference(files, results, first, second, metric)
                row[metric] += f" [{found.low:+.2f}, {found.high:+.2f}]"
        rows.append(row)
    return rows
