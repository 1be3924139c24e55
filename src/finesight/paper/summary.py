"""All systems in one table and one figure: does the rationale beat poolings that learn nothing?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finesight.paper.datasets import DATASETS
from finesight.paper.rows import LOOKING, OF_THE_RATIONALE, OWN_POOLING, WITH_RATIONALE
from finesight.paper.scores import mean_and_std, value
from finesight.paper.selection import find_row
from finesight.paper.store import Results
from finesight.plots.figures import DotRow, dot_rows

WITHOUT = {"average": "", "GeM": "-gem", "energy mask in GeM": "-energy-gem"}  # pooling -> end of the row's name
RATIONALE, OWN = "rationale in GeM", "a pooling of its own"
METRIC = "rank-1"


@dataclass(frozen=True)
class NetworkScores:
    """Rank-1 of one network on one dataset: pooling -> seed -> percent."""

    label: str
    scores: dict[str, dict[int, float]]

    def mean(self, pooling: str) -> float | None:
        seeds = self.scores.get(pooling)
        return float(np.mean(list(seeds.values()))) if seeds else None

    def gains(self) -> list[float]:
        """Return, for each seed that has both, the rationale minus the pooling with the best mean without it."""
        means = {pooling: mean for pooling in WITHOUT if (mean := self.mean(pooling)) is not None}
        if not means:
            return []
        best, ours = self.scores[max(means, key=means.__getitem__)], self.scores.get(RATIONALE, {})
        return [ours[seed] - best[seed] for seed in ours if seed in best]


def network_scores(results: Mapping[str, Results]) -> list[NetworkScores]:
    """Return the networks of Tables 2 and 3 that have results, dataset by dataset, the frozen one first."""
    found = []
    for kind, dataset in DATASETS.items():
        for name in dict.fromkeys(("frozen", *WITH_RATIONALE, *LOOKING)):
            rows = {pooling: name + end for pooling, end in WITHOUT.items()}
            rows[RATIONALE] = OF_THE_RATIONALE.get(name, "")
            scores = {pooling: _by_seed(results.get(kind, {}), row) for pooling, row in rows.items()}
            label = find_row(f"{name}-gem").label.removesuffix(", GeM")
            found.append(NetworkScores(f"{dataset.column}: {label}", scores))
        for name in OWN_POOLING:
            scores = {OWN: _by_seed(results.get(kind, {}), name)}
            found.append(NetworkScores(f"{dataset.column}: {find_row(name).paper}", scores))
    return [network for network in found if any(network.scores.values())]


def _by_seed(results: Results, row: str) -> dict[int, float]:
    numbers = {seed: value(result, METRIC) for seed, result in sorted(results.get(row, {}).items())}
    return {seed: number for seed, number in numbers.items() if number is not None}


def summary_rows(results: Mapping[str, Results]) -> list[dict[str, str]]:
    """Return a line for each network: rank-1 under every pooling, and what the rationale gains."""
    networks = network_scores(results)
    poolings = dict.fromkeys(pooling for network in networks for pooling in network.scores)
    return [
        {METRIC: network.label}
        | {pooling: mean_and_std(list(network.scores.get(pooling, {}).values())) for pooling in poolings}
        | {"gain over the best without": mean_and_std(network.gains(), sign="+")}
        for network in networks
    ]


def summary_figure(results: Mapping[str, Results]) -> bytes:
    """Draw the same: a line for each network, a dot for each pooling."""
    rows = []
    for network in network_scores(results):
        means = {pooling: network.mean(pooling) for pooling in network.scores}
        rows.append(DotRow(network.label, {pooling: mean for pooling, mean in means.items() if mean is not None}))
    return dot_rows(rows, xlabel=f"{METRIC} (%)", accent=RATIONALE)
