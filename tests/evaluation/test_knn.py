"""Nearest train images vote: against plain loops, ties included, narrow and wide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.errors import FineSightError
from finesight.evaluation.knn import knn_places
from finesight.evaluation.retrieval import cross_rows
from finesight.features.wide import WideRows
from reference.knn import vote


def check(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, ks: tuple[int, ...]) -> None:
    got = knn_places(train.astype(np.float32), labels, test.astype(np.float32), truth, ks)
    asked = [i for i, label in enumerate(truth) if label >= 0]
    for k in ks:
        want = [vote(train, labels.tolist(), test[i], k) == truth[i] for i in asked]
        assert (got[k] <= 1).tolist() == want, k


@pytest.mark.parametrize("seed", range(4))
def test_random_features_match_the_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, truth = rng.integers(-1, 6, 70), rng.integers(-1, 8, 30)  # classes 6 and 7 are not in train
    centers = rng.integers(-9, 10, (9, 10))
    train = centers[labels] + rng.integers(-6, 7, (70, 10))
    test = centers[truth] + rng.integers(-6, 7, (30, 10))
    check(train.astype(float), labels, test.astype(float), truth, (1, 5, 20, 500))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cases_full_of_ties(data: st.DataObject) -> None:
    """Axes and zero vectors: most cosines are equal, and so are many votes."""
    n, m = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    train, test = np.zeros((n, 3)), np.zeros((m, 3))
    for rows in (train, test):
        for row in rows:
            row[data.draw(st.integers(0, 2))] = data.draw(st.sampled_from([-2, 0, 1, 3]))
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    truth = np.array(data.draw(st.lists(st.integers(0, 3), min_size=m, max_size=m)))
    check(train, labels, test, truth, (1, 2, 3, 20))


def test_a_near_neighbor_outweighs_two_far_ones() -> None:
    train = np.float32([[1, 0.01], [0.8, 0.6], [0.8, -0.6]])
    near = knn_places(train, np.array([7, 2, 2]), np.float32([[1, 0]]), np.array([7]), (3,))
    assert near[3].tolist() == [1], "exp(1 / 0.07) is 17 times exp(0.8 / 0.07)"


def test_wide_features_give_what_narrow_ones_do() -> None:
    rng = np.random.default_rng(0)
    labels, truth = rng.integers(0, 4, 40), rng.integers(0, 4, 25)
    values = rng.integers(-8, 9, (65, 900)).astype(np.float32)  # exact in 16 bits
    wide = WideRows.empty(65, 900)
    wide[0:65] = values
    got = knn_places(wide[0:40], labels, wide[40:65], truth, (1, 5))
    want = knn_places(values[:40], labels, values[40:], truth, (1, 5))
    for k in (1, 5):
        assert got[k].tolist() == want[k].tolist()


def test_cosines_across_are_exact_whatever_the_chunk() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((13, 30)).astype(np.float32), rng.standard_normal((9, 30)).astype(np.float32)
    whole = np.stack([row.copy() for row in cross_rows(a, b)])
    parts = np.stack([row.copy() for row in cross_rows(a, b, chunk=4)])
    assert np.array_equal(whole, parts)
    unit = [x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True) for x in (a, b)]
    np.testing.assert_allclose(whole, unit[0] @ unit[1].T, atol=1e-6)


def test_what_cannot_vote() -> None:
    x = np.ones((3, 2), np.float32)
    with pytest.raises(FineSightError, match="no train image has one"):
        knn_places(x, np.full(3, -1), x, np.zeros(3, int))
    with pytest.raises(FineSightError, match="no test image has one"):
        knn_places(x, np.zeros(3, int), x, np.full(3, -1))
    with pytest.raises(ValueError, match="at least 1"):
        knn_places(x, np.zeros(3, int), x, np.zeros(3, int), (0,))
    with pytest.raises(ValueError, match="labels of shape"):
        knn_places(x, np.zeros(2, int), x, np.zeros(3, int))
    with pytest.raises(FineSightError, match="not finite"):
        knn_places(x * np.nan, np.zeros(3, int), x, np.zeros(3, int))
