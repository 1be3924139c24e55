"""The paired bootstrap against exact fractions, against every possible draw, and against known truths."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import intervals, paired_bootstrap, paired_bootstrap_seeds
from reference import bootstrap as reference


def hits(rng: np.random.Generator, queries: int, a: float, b: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two systems that mostly agree: a query is as hard for one as for the other."""
    hardness = rng.random(queries)
    return hardness < a, np.where(rng.random(queries) < 0.2, rng.random(queries) < b, hardness < b)


# --- against the reference --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hits", "ap"])
@pytest.mark.parametrize(("queries", "level"), [(1, 0.95), (2, 0.9), (17, 0.95), (40, 0.5)])
def test_the_same_draws_in_fractions(kind: str, queries: int, level: float) -> None:
    rng = np.random.default_rng(queries)
    a, b = hits(rng, queries, 0.5, 0.6) if kind == "hits" else (rng.random(queries), rng.random(queries))
    found = paired_bootstrap(a, b, resamples=200, seed=5, level=level)
    draws = np.random.default_rng(5).integers(queries, size=(200, queries)).tolist()
    expected = reference.means(a, b, draws)
    assert found.mean == pytest.approx(100 * (np.mean(b) - np.mean(a)), abs=1e-12)
    assert found.low == pytest.approx(reference.quantile(expected, (1 - level) / 2), abs=1e-8)
    assert found.high == pytest.approx(reference.quantile(expected, (1 + level) / 2), abs=1e-8)
    assert found.p == reference.p_value(expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 0, 0, 1, 0], [1, 1, 0, 0, 1]),
        ([0, 0, 0, 0, 1], [1, 1, 0, 0, 1]),
        ([1 / 3, 0.5, 1, 0.2, 0.25], [0.5, 1 / 3, 0.9, 0.35, 0.25]),
    ],
)
def test_many_resamples_come_to_every_possible_draw(a: list[float], b: list[float]) -> None:
    expected = reference.means(a, b, reference.every_draw(5))
    found = paired_bootstrap(a, b, resamples=30_000)
    assert found.p == pytest.approx(reference.p_value(expected), abs=0.02)
    assert found.low == pytest.approx(reference.quantile(expected, 0.025), abs=0.5)
    assert found.high == pytest.approx(reference.quantile(expected, 0.975), abs=0.5)


def test_ties_are_ties_however_they_round() -> None:
    """0.1 + 0.2 − 0.3 is no gain: of three queries that cancel out, draws of one each count on both sides."""
    a, b = np.array([0.0, 0.0, 0.3]), np.array([0.1, 0.2, 0.0])
    draws = np.random.default_rng(0).integers(3, size=(3000, 3))
    ties = np.mean([sorted(draw) == [0, 1, 2] for draw in draws.tolist()])
    below = np.mean((b - a)[draws].sum(axis=1) < -1e-9)
    assert ties > 0.2
    assert paired_bootstrap(a, b, resamples=3000).p == pytest.approx(min(1, 2 * min(below + ties, 1 - below)))


def test_no_chunk_changes_the_result() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(37), rng.random(37)
    whole = paired_bootstrap(a, b, resamples=500)
    for queries in (1, 7, 37 * 3, 37 * 499):
        assert paired_bootstrap(a, b, resamples=500, chunk_bytes=8 * queries) == whole


# --- known truths -----------------------------------------------------------------------------------------------------


def test_coverage_and_false_alarms() -> None:
    """Of 300 experiments the interval misses one in twenty; resampling a and b apart would hardly ever miss."""
    rng = np.random.default_rng(0)
    inside, half, alarms = [], [], []
    for _ in range(300):
        a, b = hits(rng, 150, 0.4, 0.5)
        found = paired_bootstrap(a, b, resamples=600, seed=int(rng.integers(2**31)))
        inside.append(found.low <= 10 <= found.high)
        found = paired_bootstrap(a, b, resamples=600, seed=int(rng.integers(2**31)), level=0.5)
        half.append(found.low <= 10 <= found.high)
        same = paired_bootstrap(*hits(rng, 150, 0.4, 0.4), resamples=600, seed=int(rng.integers(2**31)))
        alarms.append(same.p < 0.05)
    assert 0.92 <= np.mean(inside) <= 0.98
    assert 0.42 <= np.mean(half) <= 0.62
    assert 0.02 <= np.mean(alarms) <= 0.09


def test_identical_runs_differ_by_nothing() -> None:
    values = np.random.default_rng(0).random(50)
    for pair in ((values, values), (values > 0.5, values > 0.5)):
        found = paired_bootstrap(*pair)
        assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)


@pytest.mark.parametrize("shift", [0.25, -0.25])
def test_a_constant_shift_is_certain(shift: float) -> None:
    values = np.random.default_rng(0).random(50) / 2 + 0.25
    found = paired_bootstrap(values, values + shift, resamples=400)
    assert (found.mean, found.low, found.high) == pytest.approx((100 * shift,) * 3)
    assert found.p == 1 / 400
    assert intervals(np.ones((5, 1))).tolist() == [[100.0, 100.0]]


def test_exchanged_the_sign_turns() -> None:
    a, b = hits(np.random.default_rng(3), 80, 0.4, 0.5)
    there, back = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert there.p == back.p
    assert there.low < there.mean < there.high
    assert paired_bootstrap(a, b, seed=1) != there


# --- several seeds ----------------------------------------------------------------------------------------------------


def test_seeds_are_averaged_query_by_query() -> None:
    rng = np.random.default_rng(0)
    runs = [hits(rng, 60, 0.4, 0.5) for _ in range(3)]
    found = paired_bootstrap_seeds(runs, resamples=300)
    means = np.mean([a for a, _ in runs], axis=0), np.mean([b for _, b in runs], axis=0)
    expected = paired_bootstrap(*means, resamples=300)
    assert (found.mean, found.low, found.high, found.p) == pytest.approx(
        (expected.mean, expected.low, expected.high, expected.p)
    )
    once = paired_bootstrap(*runs[0], resamples=300)
    assert paired_bootstrap_seeds(runs[:1], resamples=300) == once
    thrice = paired_bootstrap_seeds(runs[:1] * 3, resamples=300)
    assert (thrice.low, thrice.high, thrice.p) == pytest.approx((once.low, once.high, once.p)), "no more evidence"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_compared() -> None:
    with pytest.raises(FineSightError, match=r"same queries.* 2 and 3\. .*same images"):
        paired_bootstrap([1, 0], [1, 0, 1])
    with pytest.raises(FineSightError, match="same queries"):
        paired_bootstrap_seeds([([1, 0], [1, 1]), ([1, 0, 1], [1, 1, 1])])
    for empty in ([([], [])], []):
        with pytest.raises(FineSightError, match="no queries"):
            paired_bootstrap_seeds(empty)
    with pytest.raises(FineSightError, match="not finite"):
        paired_bootstrap([0.5, np.nan], [0.5, 0.5])
    with pytest.raises(ValueError, match="2 × 2"):
        paired_bootstrap(np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(FineSightError, match="no queries"):
        intervals(np.ones((0, 1)))
    for options in ({"resamples": 0}, {"level": 0.0}, {"level": 1.0}, {"level": 95}):
        with pytest.raises(ValueError, match="level"):
            paired_bootstrap([1], [0], **options)


# --- intervals of one system ------------------------------------------------------------------------------------------


def drawn(count: int, resamples: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(count, size=(resamples, count)).tolist()


def test_intervals_are_the_quantiles_of_means_over_draws() -> None:
    """The same draws, one resample at a time, for every column."""
    rng = np.random.default_rng(5)
    values = np.stack([rng.random(23) < 0.4, rng.random(23)], axis=1).astype(np.float64)
    got = intervals(values, resamples=300, seed=2)
    for column, ends in zip(values.T, got, strict=True):
        means = reference.resampled_means(column.tolist(), [1] * 23, drawn(23, 300, 2))
        assert ends.tolist() == pytest.approx([reference.quantile(means, share) for share in (0.025, 0.975)])


def test_clusters_are_drawn_whole() -> None:
    rng = np.random.default_rng(6)
    labels = np.array([4, 4, 9, 9, 9, 1, 1, 1, 1, 7])
    values = rng.random((10, 2))
    got = intervals(values, clusters=labels, resamples=200, seed=3)
    order = [1, 4, 7, 9]
    for column, ends in zip(values.T, got, strict=True):
        sums = [float(column[labels == label].sum()) for label in order]
        means = reference.resampled_means(sums, [4, 2, 1, 3], drawn(4, 200, 3))
        assert ends.tolist() == pytest.approx([reference.quantile(means, share) for share in (0.025, 0.975)])


def test_clusters_of_like_queries_widen_the_interval() -> None:
    labels = np.repeat(np.arange(20), 30)
    hits = (labels % 2 == 0).astype(np.float64)[:, None]  # classes are right or wrong as a whole
    plain, whole = (np.diff(intervals(hits, clusters=clusters)[0])[0] for clusters in (None, labels))
    assert whole > 4 * plain


def test_intervals_cover_what_they_say_and_do_not_depend_on_the_chunk() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        low, high = intervals((rng.random((200, 1)) < 0.3).astype(float), resamples=400, seed=seed)[0]
        covered += low <= 30 <= high
    assert 87 <= covered <= 100
    values = rng.random((50, 1))
    whole = intervals(values, resamples=90)
    assert np.array_equal(intervals(values, resamples=90, chunk_bytes=8 * 50 * 7), whole)
