"""The tables against plain Python, and their intervals against the per-query files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finesight.evaluation.bootstrap import paired_bootstrap_seeds
from finesight.evaluation.retrieval import RetrievalScores
from finesight.paper.rows import BIRD_ROWS
from finesight.paper.scores import (
    METRICS,
    PAIRED,
    RESAMPLES,
    difference,
    difference_rows,
    mean_and_std,
    score_rows,
    seed_differences,
    seed_pairs,
    value,
)
from finesight.paper.store import Results, ResultStore
from reference import tables as reference

QUERIES = 60
SEEDS = {
    "frozen": (0,),
    "frozen-box": (0,),
    "moco-v2": (0, 1, 2),
    "moco-v2-gem": (1, 2, 5),
    "lcr": (0, 1, 2),
    "lcr-k8": (0,),
}


def scored(rng: np.random.Generator, level: float) -> RetrievalScores:
    hit1 = rng.random(QUERIES) < level
    hit5, ap = hit1 | (rng.random(QUERIES) < 0.5), rng.random(QUERIES) * level
    return RetrievalScores({"rank1": hit1, "rank5": hit5, "mAP": ap})


def result(system: str, seed: int, queries: RetrievalScores, rng: np.random.Generator) -> dict[str, Any]:
    linear = {share: {"top1": float(rng.random() * 100)} for share in ("100", "50", "20")}
    return {
        "method": system,
        "seed": seed,
        "retrieval": queries.summary(),
        "linear": linear if BIRD_ROWS[system].probe else None,
        "localization": None if "box" in system else {"inside": float(rng.random() * 100)},
        **{key: None for key in ("dataset", "classes", "profile", "settings", "seconds", "peak_memory_mb")},
        **{key: "" for key in ("command", "commit")},
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    folder = ResultStore(tmp_path_factory.mktemp("results"))
    rng = np.random.default_rng(3)
    for level, (system, seeds) in zip(np.linspace(0.3, 0.7, len(SEEDS)), SEEDS.items(), strict=True):
        for seed in seeds:
            queries = scored(rng, level)
            folder.write(system, seed, result(system, seed, queries, rng), queries)
    return folder


@pytest.fixture(scope="module")
def results(files: ResultStore) -> Results:
    return files.read()


def by_seed(results: Results, system: str, metric: str) -> dict[int, float]:
    found = {seed: value(result, metric) for seed, result in results[system].items()}
    return {seed: number for seed, number in found.items() if number is not None}


def test_scores_are_mean_and_sample_std_beside_the_paper(results: Results) -> None:
    rows = {row["name"]: row for row in score_rows(results)}
    assert list(rows) == [name for name in BIRD_ROWS if name in SEEDS]
    for name, row in rows.items():
        assert row["system"] == BIRD_ROWS[name].label
        assert row["seeds"] == str(len(SEEDS[name]))
        for metric in METRICS:
            shown, _, printed = row[metric].partition(" (")
            numbers = by_seed(results, name, metric)
            assert shown == reference.cell([numbers[seed] for seed in sorted(numbers)]), (name, metric)
            assert bool(printed) == (BIRD_ROWS[name].paper is not None and metric != "attention on bird")
    assert rows["lcr"]["rank-1"].endswith(" (49.69)")
    assert rows["moco-v2"]["20 %"].endswith(" (46.91)")
    assert rows["lcr-k8"]["linear 100 %"] == "–"
    assert rows["frozen-box"]["attention on bird"] == "–"


@pytest.mark.parametrize("first", ["frozen", "frozen-box", "moco-v2", "moco-v2-gem", "lcr-k8"])
@pytest.mark.parametrize("metric", METRICS)
def test_differences_seed_by_seed(results: Results, first: str, metric: str) -> None:
    a, b = by_seed(results, first, metric), by_seed(results, "lcr", metric)
    expected = reference.gains(a, b, first_is_frozen=first.startswith("frozen")) if a else []
    assert seed_differences(results, first, "lcr", metric) == pytest.approx(expected, abs=1e-12)


def test_which_seeds_are_compared(results: Results) -> None:
    assert seed_pairs(results, "moco-v2", "lcr") == [(0, 0), (1, 1), (2, 2)]
    assert seed_pairs(results, "moco-v2-gem", "lcr") == [(1, 1), (2, 2)], "5 is not LCR's, 0 not the other's"
    assert seed_pairs(results, "frozen", "lcr") == [(0, 0), (0, 1), (0, 2)]
    assert seed_pairs(results, "lcr", "frozen") == [(0, 0), (1, 0), (2, 0)]
    assert seed_pairs(results, "frozen", "frozen-box") == [(0, 0)]
    assert seed_pairs(results, "lcr-k8", "lcr") == [(0, 0)], "one seed so far is not the same as frozen"
    alone = {"moco-v2": {3: {}}, "lcr": {4: {}}}
    assert seed_pairs(alone, "moco-v2", "lcr") == []


def test_the_interval_is_that_of_the_queries(files: ResultStore, results: Results) -> None:
    for first, pairs in {"moco-v2-gem": [(1, 1), (2, 2)], "frozen": [(0, 0), (0, 1), (0, 2)]}.items():
        for metric, key in (("rank-1", "rank1"), ("rank-5", "rank5"), ("mAP", "mAP")):
            found = difference(files, results, first, "lcr", metric)
            arrays = [(files.per_query(first, a)[key], files.per_query("lcr", b)[key]) for a, b in pairs]
            assert found == paired_bootstrap_seeds(arrays, resamples=RESAMPLES)
            assert found.mean == pytest.approx(
                reference.mean(seed_differences(results, first, "lcr", metric)), abs=1e-4
            )
            assert found.low <= found.mean <= found.high


def test_the_table_of_gains(files: ResultStore, results: Results) -> None:
    rows = {row["name"]: row for row in difference_rows(files, results)}
    assert list(rows) == ["frozen", "frozen-box", "moco-v2", "moco-v2-gem"], "neither LCR itself nor its curve"
    for name, row in rows.items():
        for metric in METRICS:
            shown, _, interval = row[metric].partition(" [")
            gains = seed_differences(results, name, "lcr", metric)
            assert shown == reference.cell(gains, signed=True)
            if metric in PAIRED:
                found = difference(files, results, name, "lcr", metric)
                assert interval == f"{found.low:+.2f}, {found.high:+.2f}]"
            else:
                assert interval == ""
    assert rows["frozen-box"]["attention on bird"] == "–"


def test_nothing_to_compare_gives_no_rows_and_dashes(files: ResultStore, results: Results) -> None:
    assert difference_rows(files, {name: results[name] for name in ("frozen", "moco-v2")}) == []
    assert difference_rows(files, {"lcr": results["lcr"]}) == []
    apart = {"moco-v2": {0: results["moco-v2"][0]}, "lcr": {1: results["lcr"][1]}}
    (row,) = difference_rows(files, apart)
    assert {row[metric] for metric in METRICS} == {"–"}


def test_a_row_no_longer_known_is_left_out(results: Results) -> None:
    assert score_rows({"of-old": results["lcr"]}) == []


@pytest.mark.parametrize(
    ("numbers", "plain", "signed"),
    [
        ([], "–", "–"),
        ([1.005], "1.00", "+1.00"),
        ([-2.0, -1.0], "-1.50 ± 0.71", "-1.50 ± 0.71"),
        ([3.0] * 3, "3.00 ± 0.00", "+3.00 ± 0.00"),
    ],
)
def test_cells(numbers: list[float], plain: str, signed: str) -> None:
    assert mean_and_std(numbers) == plain
    assert mean_and_std(numbers, "+") == signed
