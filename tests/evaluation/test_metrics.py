"""One contract for every registered metric, and what the built-in ones say."""

from __future__ import annotations

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import intervals, paired_bootstrap
from finesight.evaluation.metrics import (
    FAMILIES,
    METRICS,
    ClassifierMetric,
    LocalizationMetric,
    Metric,
    RetrievalMetric,
    Values,
    metric,
    metrics_of,
    retrieval_metrics,
)

GALLERY = 20
BEST, WORST = np.arange(1, 5), np.arange(GALLERY - 3, GALLERY + 1)  # four images of the class: first, or last
MASK = np.zeros((8, 8), dtype=bool)
MASK[:4] = True


def values(piece: Metric, kind: str) -> Values:
    """Values of queries that are all right, all wrong, or mixed."""
    rng = np.random.default_rng(0)
    if isinstance(piece, RetrievalMetric):
        mixed = [np.sort(rng.choice(GALLERY, 4, replace=False) + 1) for _ in range(40)]
        rankings = {"best": [BEST] * 3, "worst": [WORST] * 3, "mixed": mixed}[kind]
        return np.array([piece.value(positions, GALLERY) for positions in rankings], dtype=piece.dtype)
    if isinstance(piece, ClassifierMetric):
        places = {"best": [1] * 3, "worst": [6] * 3, "mixed": rng.integers(1, 7, 40)}[kind]
        return piece.values(np.array(places))
    assert isinstance(piece, LocalizationMetric)
    maps = {"best": [MASK * 1.0] * 3, "worst": [~MASK * 1.0] * 3, "mixed": rng.random((40, 8, 8))}[kind]
    return np.array([piece.value(heat, MASK) for heat in maps], dtype=piece.dtype)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_keeps_the_contract(name: str) -> None:
    piece = METRICS[name]
    assert name == f"{piece.family}.{piece.key}"
    assert piece.family in FAMILIES
    assert piece.title
    assert piece.words or not piece.shown, "the report says what a column means"
    best, worst, mixed = (values(piece, kind) for kind in ("best", "worst", "mixed"))
    assert mixed.dtype == piece.dtype
    if piece.unit == "%":
        assert (mixed.min(), mixed.max()) >= (0, 0)
        assert mixed.max() <= 1
        assert piece.score(best) == 100
    ordered = [piece.score(worst), piece.score(mixed), piece.score(best)]
    assert ordered == sorted(ordered, reverse=not piece.higher_is_better)
    assert ordered[0] != ordered[2]
    assert piece.score(mixed) == pytest.approx(piece.scale * np.mean(mixed.astype(np.float64)))
    low, high = intervals(mixed.astype(np.float64)[:, None], scale=piece.scale)[0]
    assert low < piece.score(mixed) < high
    difference = paired_bootstrap(mixed, np.roll(mixed, 1), scale=piece.scale, resamples=200)
    assert difference.low <= 0 <= difference.high


def test_retrieval_by_hand() -> None:
    """Of three images of the class, the places are 2, 3 and 9."""
    found = {piece.key: piece.value(np.array([2, 3, 9]), GALLERY) for piece in retrieval_metrics()}
    assert found == {"rank1": False, "rank5": True, "mAP": pytest.approx((1 / 2 + 2 / 3 + 3 / 9) / 3)}


def test_tables_have_their_families_in_order() -> None:
    names = [f"{piece.family}.{piece.key}" for piece in metrics_of(Metric)]
    assert names == [
        *("retrieval.rank1", "retrieval.rank5", "retrieval.mAP", "linear.top1", "linear.top5", "knn.top1"),
        *("localization.inside", "localization.pointing"),
    ]


def test_two_metrics_of_one_name_are_refused() -> None:
    class Again(RetrievalMetric):
        key, title = "rank1", "rank-1"

        def value(self, positions: np.ndarray, gallery: int) -> float:
            return 0.0

    with pytest.raises(FineSightError, match=r"Two metrics are called 'retrieval\.rank1'"):
        metric(Again)


@pytest.mark.parametrize("kind", [RetrievalMetric, ClassifierMetric, LocalizationMetric])
def test_a_metric_without_values_is_refused_when_it_is_registered(kind: type[Metric]) -> None:
    incomplete = type(
        "Incomplete", (kind,), {"family": kind.__dict__.get("family", "linear"), "key": "no", "title": "No"}
    )
    with pytest.raises(TypeError, match="value"):
        metric(incomplete)
    assert not any(name.endswith(".no") for name in METRICS)


def test_a_metric_where_lower_is_better_says_so() -> None:
    class First(RetrievalMetric):
        key, title, higher_is_better, scale, unit = "first", "first hit", False, 1.0, ""

        def value(self, positions: np.ndarray, gallery: int) -> float:
            return float(positions[0])

    assert First().head() == "first hit (lower is better)"
    assert First().score([2.0, 4.0]) == 3
