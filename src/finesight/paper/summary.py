"""The question of Table 2 in one table and one figure: does the rationale beat poolings that learn nothing?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finesight.paper.datasets import DATASETS
from finesight.paper.rows import WITH_RATIONALE
from finesight.paper.scores import mean_and_std, value
from finesight.paper.selection import find_row
from finesight.paper.store import Results
from finesight.plots.figures import DotRow, dot_rows

WITHOUT = {"average": "", "GeM": "-gem", "energy mask in GeM": "-energy-gem"}  # pooling -> end of the row's name
RATIONALE = "rationale in GeM"
METRIC = "rank-1"


@dataclass(frozen=True)
class NetworkScores:
    """Rank-1 of one network on one dataset: pooling -> seed -> percent. The last pooling is the rationale's."""

    label: str
    scores: dict[str, dict[int, float]]

    def mean(self, pooling: str) -> float | None:
        seeds = self.scores[pooling]
        return float(np.mean(list(seeds.values()))) if seeds else None

    def gains(self) -> list[float]:
        """Return, for each seed that has both, the rationale minus the pooling with the best mean without it."""
        means = {pooling: mean for pooling in WITHOUT if (mean := self.mean(pooling)) is not None}
        if not means:
            return []
        best, ours = self.scores[max(means, key=means.__getitem__)], self.scores[RATIONALE]
        return [ours[seed] - best[seed] for seed in ours if seed in best]


def network_scores(results: Mapping[str, Results]) -> list[NetworkScores]:
    """Return the networks of Table 2 that have results, dataset by dataset, the frozen one first."""
    found = []
    for kind, dataset in DATASETS.items():
        for name in ("frozen", *WITH_RATIONALE):
            rows = {pooling: name + end for pooling, end in WITHOUT.items()}
            rows[RATIONALE] = "lcr" if name == "moco-v2" else f"{name}-lcr"
            scores = {pooling: _by_seed(results.get(kind, {}), row) for pooling, row in rows.items()}
            if any(scores.values()):
                label = find_row(f"{name}-gem").label.removesuffix(", GeM")
                found.append(NetworkScores(f"{dataset.column}: {label}", scores))
    return found


def _by_seed(results: Results, row: str) -> dict[int, float]:
    numbers = {seed: value(result, METRIC) for seed, result in sorted(results.get(row, {}).items())}
    return {seed: number for seed, number in numbers.items() if number is not None}


def summary_rows(results: Mapping[str, Results]) -> list[dict[str, str]]:
    """Return a line for each network: rank-1 under every pooling, and what the rationale gains."""
    return [
        {METRIC: network.label}
        | {pooling: mean_and_std(list(seeds.values())) for pooling, seeds in network.scores.items()}
        | {"gain over the best without": mean_and_std(network.gains(), sign="+")}
        for network in network_scores(results)
    ]


def summary_figure(results: Mapping[str, Results]) -> bytes:
    """Draw the same: a line for each network, a dot for each pooling."""
    rows = []
    for network in network_scores(results):
        means = {pooling: network.mean(pooling) for pooling in network.scores}
        rows.append(DotRow(network.label, {pooling: mean for pooling, mean in means.items() if mean is not None}))
    return dot_rows(rows, xlabel=f"{METRIC} (%)", accent=RATIONALE)
