"""The results of ``bench defaults`` as tables: every score, and what each domain says of the bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import paired_bootstrap_seeds
from finesight.evaluation.metrics import METRICS
from finesight.paper.defaults import DOMAINS, POOLINGS, SEEDS, Task, queries_file
from finesight.paper.markdown import markdown_table
from finesight.paper.scores import RESAMPLES, mean_and_std
from finesight.paper.store import read_json, read_queries

SHOWN = ("rank1", "rank5", "mAP")
BARRED = ("rank1", "mAP")  # neither may fall
GAINS = {"birds": 3.0, "cars": 3.0}  # points of rank-1 that must be gained
REQUIRED = ("domain", "seed", "setting", "retrieval", "pooling", "command", "date", "machine")
WORDS = {"average": "average", "gem": "GeM", "energy": "energy mask", "energy-gem": "energy mask in GeM"}


@dataclass(frozen=True)
class DomainResults:
    """What is known of a domain."""

    folder: Path  # of all results
    domain: str
    frozen: Mapping[str, Any]
    seeds: Mapping[int, Mapping[str, Any]]

    def best(self, metric: str) -> str:
        """Return the pooling of the frozen network that is best in ``metric`` on the test images: the hardest rival."""
        return max(POOLINGS, key=lambda name: float(self.frozen["retrieval"][name][metric]))

    def frozen_score(self, metric: str) -> float:
        return float(self.frozen["retrieval"][self.best(metric)][metric])

    def scores(self, metric: str) -> list[float]:
        """Return the score of every seed under the pooling its run chose."""
        return [
            float(self.seeds[seed]["retrieval"][self.seeds[seed]["pooling"]][metric]) for seed in sorted(self.seeds)
        ]

    def gains(self, metric: str) -> list[float]:
        """Return what each seed has above the frozen network under its best pooling."""
        return [score - self.frozen_score(metric) for score in self.scores(metric)]

    def interval(self, metric: str) -> str:
        """Return the 95 % interval of the gain over queries, the same for both networks."""
        task = Task(self.domain)
        rival = read_queries(queries_file(self.folder, task, self.best(metric)), Path("frozen.json"))[metric]
        ours = [queries_file(self.folder, Task(self.domain, seed), "") for seed in sorted(self.seeds)]
        pairs = [(rival, read_queries(file, Path(f"{file.stem}.json"))[metric]) for file in ours]
        found = paired_bootstrap_seeds(pairs, scale=METRICS[f"retrieval.{metric}"].scale, resamples=RESAMPLES)
        return f"[{found.low:+.2f}, {found.high:+.2f}]"

    def failures(self) -> list[str]:
        """Return what falls short of the bar, in words."""
        words = []
        for metric in BARRED:
            gains, title = self.gains(metric), METRICS[f"retrieval.{metric}"].title
            deviation = float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
            if (mean := float(np.mean(gains))) < -deviation:
                words.append(f"{title} {-mean:.2f} below frozen, deviation {deviation:.2f}")
        wanted, gained = GAINS.get(self.domain), float(np.mean(self.gains("rank1")))
        if wanted is not None and gained < wanted:
            words.append(f"rank-1 {gained:+.2f}, {wanted:+.0f} wanted")
        return words

    def judgment(self) -> str:
        """Return pass or fail with the reason; with too few seeds neither."""
        if len(self.seeds) < len(SEEDS):
            return f"open: {len(self.seeds)} of {len(SEEDS)} seeds"
        return f"fail: {'; '.join(failures)}" if (failures := self.failures()) else "pass"


def read_results(folder: Path) -> dict[str, DomainResults]:
    """Return the results by domain; a domain without its frozen network is left out.

    Raises a ``FineSightError`` if a file is damaged or lacks something.
    """
    found = {}
    for domain in DOMAINS:
        files = sorted((folder / domain).glob("seed-*.json"), key=lambda file: int(file.stem.removeprefix("seed-")))
        frozen = folder / domain / "frozen.json"
        if frozen.exists():
            seeds = {int(file.stem.removeprefix("seed-")): _read(file) for file in files}
            found[domain] = DomainResults(folder, domain, _read(frozen), seeds)
    return found


def _read(file: Path) -> dict[str, Any]:
    result = read_json(file)
    if missing := [key for key in REQUIRED if key not in result]:
        raise FineSightError(f"The result {file} lacks {', '.join(missing)}. Delete it to make it again.")
    return result


def score_rows(results: Mapping[str, DomainResults]) -> list[dict[str, str]]:
    """Return the frozen network under each pooling and what training leaves, domain by domain."""
    rows = []
    for domain, known in results.items():
        for name in POOLINGS:
            scores = known.frozen["retrieval"][name]
            marks = [METRICS[f"retrieval.{metric}"].title for metric in BARRED if known.best(metric) == name]
            label = f"frozen, {WORDS[name]}" + (f" (best {', '.join(marks)})" if marks else "")
            rows.append(_row(domain, label, "–", {metric: [float(scores[metric])] for metric in SHOWN}))
        if known.seeds:
            scores = {metric: known.scores(metric) for metric in SHOWN}
            rows.append(_row(domain, _trained_words(known), str(len(known.seeds)), scores))
    return rows


def _row(domain: str, label: str, seeds: str, scores: Mapping[str, list[float]]) -> dict[str, str]:
    cells = {METRICS[f"retrieval.{metric}"].title: mean_and_std(scores[metric]) for metric in SHOWN}
    return {"domain": domain, "features": label, "seeds": seeds, **cells}


def _trained_words(known: DomainResults) -> str:
    """Return the command, and the poolings that its runs chose."""
    results = [known.seeds[seed] for seed in sorted(known.seeds)]
    minutes = " or ".join(dict.fromkeys(f"{result['setting']['minutes']:g}" for result in results))
    poolings = " or ".join(dict.fromkeys(str(result["pooling"]) for result in results))
    return f"finesight train --minutes {minutes}, {poolings}"


def bar_rows(results: Mapping[str, DomainResults]) -> list[dict[str, str]]:
    """Return what each domain gains over the frozen network under its best pooling, and whether that passes."""
    rows = []
    for domain, known in results.items():
        if not known.seeds:
            continue
        cells = {
            METRICS[f"retrieval.{metric}"].title: f"{mean_and_std(known.gains(metric), '+')} {known.interval(metric)}"
            for metric in BARRED
        }
        worst = f"{min(known.gains('rank1')):+.2f}"
        rows.append({"gain": domain, **cells, "worst seed, rank-1": worst, "bar": known.judgment()})
    return rows


def plan_rows(results: Mapping[str, DomainResults]) -> list[dict[str, str]]:
    """Return what each training decided and took."""
    rows = []
    for domain, known in results.items():
        for seed, result in sorted(known.seeds.items()):
            plan, verdict = result["plan"], result["verdict"] or {}
            colors = ", ".join(f"{name} {value:g}" for name, value in plan["colors"].items())
            rows.append(
                {
                    "training": f"{domain}, seed {seed}",
                    "steps": str(plan["steps"]),
                    "batch": str(plan["batch_size"]),
                    "pixels": f"{plan['resolution']} / {result['resolution']}",
                    "colors": colors,
                    "minutes": "–" if result["minutes"] is None else f"{result['minutes']:.1f}",
                    "verdict": verdict.get("verdict", "–"),
                    "kept": verdict.get("kept", "trained"),
                }
            )
    return rows


def blocks(results: Mapping[str, DomainResults]) -> dict[str, str]:
    """Return what goes between the marks of a page."""
    tables = {"scores": score_rows(results), "bar": bar_rows(results), "plans": plan_rows(results)}
    return {f"defaults:{name}": markdown_table(rows) for name, rows in tables.items()}
