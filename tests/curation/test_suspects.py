"""Labels that the other images contradict."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finesight.curation.suspects import STRENGTHS, Votes, find_noise, judge_labels, probably_wrong
from reference.left_out import answers_without

CLASSES = 6
THRESHOLD = 0.5


def blobs(each: int = 30, width: int = 16, spread: float = 0.35, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Unit features around one direction for each class, in a mixed order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(CLASSES), each))
    centers = np.linalg.qr(random.standard_normal((width, width)))[0][:CLASSES]
    x = centers[labels] + spread * random.standard_normal((len(labels), width)) / np.sqrt(width)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def planted(labels: NDArray, count: int, seed: int = 1) -> tuple[NDArray, NDArray]:
    random = np.random.default_rng(seed)
    chosen = random.choice(len(labels), count, replace=False)
    changed = labels.copy()
    changed[chosen] = (labels[chosen] + random.integers(1, CLASSES, count)) % CLASSES
    return changed, np.sort(chosen)


@pytest.mark.parametrize("width", [16, 400])  # fewer numbers than images, and more
def test_votes_are_those_of_a_model_fitted_without_the_image(width: int) -> None:
    x, labels = blobs(each=12, width=width, spread=1.0)
    group = np.arange(len(x))
    group[[3, 10, 40]], group[[5, 6]] = 3, 5  # pictures of which there are copies
    votes = Votes.fit(x, labels, CLASSES, group)
    expected = answers_without(x.astype(np.float64), labels, CLASSES, group, votes.strength)
    np.testing.assert_allclose(votes.answers(np.arange(len(x))), expected, atol=1e-6)
    assert votes.strength in STRENGTHS


def test_planted_errors_are_found_with_the_right_label() -> None:
    x, labels = blobs()
    changed, wrong = planted(labels, 12)
    probability, suggested = judge_labels(x, changed, CLASSES)
    found = np.flatnonzero(probability >= THRESHOLD)
    assert found.tolist() == wrong.tolist()
    assert suggested[wrong].tolist() == labels[wrong].tolist()
    assert probability.sum() == pytest.approx(12, abs=2)  # as many as there are


def test_right_labels_are_left_alone() -> None:
    x, labels = blobs()
    probability, _ = judge_labels(x, labels, CLASSES)
    assert probability.max() < THRESHOLD
    assert probability.sum() < 1


def test_a_copy_with_the_same_wrong_label_does_not_vouch_for_it() -> None:
    x, labels = blobs()
    doubled, given = np.concatenate([x, x[:1], x[:1]]), np.concatenate([labels, labels[:1], labels[:1]])
    given[[0, len(x), len(x) + 1]] = (labels[0] + 1) % CLASSES
    group = np.append(np.arange(len(x)), [0, 0])
    probability, suggested = judge_labels(doubled, given, CLASSES, group)
    for image in (0, len(x), len(x) + 1):
        assert probability[image] >= THRESHOLD
        assert suggested[image] == labels[0]


def test_images_without_a_label_neither_vote_nor_are_judged() -> None:
    x, labels = blobs()
    changed, wrong = planted(labels, 8)
    some = np.concatenate([x, x])  # copies without a label
    given = np.concatenate([changed, np.full(len(x), -1)])
    probability, _ = judge_labels(some, given, CLASSES)
    alone, _ = judge_labels(x, changed, CLASSES)
    np.testing.assert_allclose(probability[: len(x)], alone, atol=1e-6)
    assert not probability[len(x) :].any()
    assert (probability[: len(x)] >= THRESHOLD).nonzero()[0].tolist() == wrong.tolist()


def test_the_share_of_errors_is_estimated() -> None:
    random = np.random.default_rng(0)
    labels, classes = 20_000, 50
    truth = random.dirichlet(np.full(classes, 0.05), labels)  # calibrated: the class is drawn from it
    drawn = (truth.cumsum(1) > random.random((labels, 1))).argmax(1)
    wrong = random.random(labels) < 0.08
    given = np.where(wrong, (drawn + random.integers(1, classes, labels)) % classes, drawn)
    share = truth[np.arange(labels), given]
    noise, _ = find_noise(share, classes)
    assert noise == pytest.approx(0.08, abs=0.01)
    probability = probably_wrong(share, classes, noise)
    for low, high in ((0.0, 0.2), (0.4, 0.6), (0.8, 1.01)):  # of those said to be wrong with 0.5, half are
        here = (probability >= low) & (probability < high)
        assert here.sum() < 20 or wrong[here].mean() == pytest.approx(probability[here].mean(), abs=0.12)


def test_the_same_every_time() -> None:
    x, labels = blobs()
    first, second = judge_labels(x, labels, CLASSES), judge_labels(x, labels, CLASSES)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
