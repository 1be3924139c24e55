"""The sequential test against exact fractions and plain loops, and its errors when one looks after every click."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.evaluation.sequential import log_capital, log_e_values, mean_interval, weigh
from reference import judging as reference

CLICKS = st.lists(st.sampled_from([-1, 0, 1]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(CLICKS)
def test_e_value_and_decision_agree_with_exact_fractions(clicks: list[int]) -> None:
    found = weigh(clicks)
    decided = reference.first_decision(clicks)
    assert found.decided_at == decided
    used = clicks if decided is None else clicks[:decided]
    largest = max([reference.e_value(used[:n]) for n in range(len(used) + 1)])
    assert found.e_value == pytest.approx(float(largest), rel=1e-9)
    assert found.winner == (None if decided is None else "b" if sum(used) > 0 else "a")


@pytest.mark.parametrize(
    "clicks", [[1], [0], [1, 1, -1, 0], [0] * 20, [1] * 9, [-1] * 5 + [0] * 8, [1, -1] * 10 + [0] * 15 + [-1] * 3]
)
def test_interval_agrees_with_plain_loops(clicks: list[int]) -> None:
    low, high = mean_interval(clicks.count(-1), clicks.count(1), clicks.count(0))
    assert low == pytest.approx(reference.bound(clicks, -1), abs=0.0025)
    assert high == pytest.approx(reference.bound(clicks, 1), abs=0.0025)
    assert low <= reference.bound(clicks, -1) <= reference.bound(clicks, 1) <= high  # rounded outward


@settings(max_examples=40, deadline=None)
@given(CLICKS)
def test_the_interval_leaves_out_zero_as_soon_as_the_test_decides(clicks: list[int]) -> None:
    found = weigh(clicks)
    step = 0.0011  # the interval is rounded outward by one step
    assert -1 <= found.low <= found.mean <= found.high <= 1
    if found.decided_at is not None:
        assert found.low > -step if found.winner == "b" else found.high < step
    else:
        assert found.low <= 0 <= found.high


@settings(max_examples=40, deadline=None)
@given(CLICKS)
def test_candidates_may_change_names(clicks: list[int]) -> None:
    one, other = weigh(clicks), weigh([-click for click in clicks])
    assert (one.a, one.b, one.ties, one.decided_at) == (other.b, other.a, other.ties, other.decided_at)
    assert one.e_value == pytest.approx(other.e_value)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))


def test_ties_carry_no_preference_but_narrow_the_interval() -> None:
    few, many = weigh([1, 1, -1]), weigh([1, 1, -1] + [0] * 50)
    assert many.e_value == few.e_value
    assert many.high - many.low < 0.5 * (few.high - few.low)
    nothing = weigh([])
    assert (nothing.low, nothing.high, nothing.e_value, nothing.clicks_left()) == (-1, 1, 1, None)
    assert weigh([0] * 30).clicks_left() is None


def test_what_was_decided_stays_decided() -> None:
    clicks = [1] * 10
    assert weigh(clicks).decided_at == 10
    assert weigh(clicks[:9]).decided_at is None
    later = weigh(clicks + [-1] * 30)
    assert (later.decided_at, later.winner, later.clicks) == (10, "b", 10)


def test_the_guess_of_clicks_left_falls_as_one_candidate_leads() -> None:
    guesses = [weigh([1, 1, 1, -1, 0] * n).clicks_left() for n in (2, 4, 6)]
    assert all(guess is not None for guess in guesses)
    assert sorted(guesses, reverse=True) == guesses
    assert weigh([1] * 12).clicks_left() == 0


def test_many_clicks_overflow_nothing() -> None:
    found = weigh([1, 0, -1] * 2000)
    assert found.decided_at is None
    assert found.low < 0 < found.high < 0.1
    assert math.isfinite(weigh([1] * 5000).e_value)


def test_only_clicks_are_weighed() -> None:
    with pytest.raises(ValueError, match="-1, 0 or 1"):
        weigh([2])


# --- errors of someone who looks after every click ----------------------------------------------------------------


def decided_share(x: np.ndarray) -> float:
    """Share of rows of clicks (R, T) for which the test decides at some click."""
    b, a = np.cumsum(x > 0, axis=1), np.cumsum(x < 0, axis=1)
    table = log_e_values(*(grid.ravel() for grid in np.indices((x.shape[1] + 1,) * 2))).reshape((x.shape[1] + 1,) * 2)
    return float((table[a, b] >= math.log(20)).any(axis=1).mean())


def test_equal_candidates_are_told_apart_in_at_most_one_of_twenty_judgings() -> None:
    rng = np.random.default_rng(0)
    for ties in (0.0, 0.6):
        decisive = rng.random((10_000, 200)) >= ties
        clicks = np.where(decisive, rng.choice([-1, 1], (10_000, 200)), 0)
        share = decided_share(clicks)
        assert 0.005 < share <= 0.05, share  # and the test is not idle


def test_pictures_in_random_order_of_a_finite_number_keep_the_error() -> None:
    """Preferences are fixed, half of them for either; chance is in the order alone."""
    rng = np.random.default_rng(1)
    fixed = np.repeat([-1, 1, 0], [60, 60, 80])
    clicks = rng.permuted(np.tile(fixed, (10_000, 1)), axis=1)
    assert decided_share(clicks) <= 0.05


def test_the_interval_holds_the_truth_at_every_click_in_95_of_100_judgings() -> None:
    """Also for pictures in random order of a finite number, at a mean that is not zero."""
    rng = np.random.default_rng(2)
    fixed = np.repeat([-1, 1, 0], [40, 60, 100])
    for mean, clicks in (
        (0.2, rng.choice([-1, 0, 1], (1500, 150), p=[0.1, 0.6, 0.3])),
        (0.1, rng.permuted(np.tile(fixed, (1500, 1)), axis=1)),
    ):
        n = np.arange(5, clicks.shape[1], 5)
        a, b = np.cumsum(clicks < 0, axis=1)[:, n - 1], np.cumsum(clicks > 0, axis=1)[:, n - 1]
        logs = log_capital(a.ravel(), b.ravel(), (n - a - b).ravel(), mean).reshape(a.shape)
        missed = float((logs >= math.log(20)).any(axis=1).mean())
        assert missed <= 0.05


def test_a_clear_preference_is_found_within_sixty_clicks() -> None:
    """At 3 of 4 for B, the right one is chosen 95 times of 100."""
    clicks = np.random.default_rng(3).choice([-1, 1], (5000, 90), p=[0.25, 0.75])
    assert decided_share(clicks) > 0.95
    assert decided_share(clicks[:, :60]) > 0.85
