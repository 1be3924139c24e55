"""Judge labels by the other images: each label is predicted by a linear model that has not seen the image.

The model is ridge regression onto the classes. Without one image, or without all copies of one picture, its answer
follows in closed form from the fit to all (the hat matrix), so nothing is drawn at random and nothing is fitted twice.
A softmax makes probabilities p of its answers. Most labels are right: with a share e of errors, each of which is one of
the other classes, a label g is given with the probability (1 − e) · p[g] + e · (1 − p[g]) / (classes − 1). The strength
of the ridge, the temperature of the softmax and e are those under which the given labels are the most probable; the
second part of that sum, as a share of it, is the probability that the label is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finesight.features.embedder import unit
from finesight.features.types import Floats
from finesight.features.wide import Features

THRESHOLD = 0.1  # probability from which a label is listed: chosen on train images of CUB (docs/clean.md)
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)  # of the ridge, for features of length 1
TEMPERATURES = tuple(np.geomspace(0.01, 1.0, 17).tolist())
SAMPLE = 20_000  # images by which strength and temperature are chosen
BLOCK = 4096  # images whose votes are held at a time
NOISE = 0.05  # where the estimate of the share of wrong labels begins
NOISE_LIMITS = 1e-4, 0.5
ROUNDS = 30
LEAST = 1e-12

Array = NDArray[np.float64]


def judge_labels(
    features: Features, labels: NDArray[np.int64], classes: int, group: NDArray[np.int64] | None = None
) -> tuple[Floats, NDArray[np.int64]]:
    """Return for each image the probability that its label is wrong, and the other class that is most probable.

    Images without a label (-1) have probability 0. Images with one number in ``group`` show one picture: none of them
    votes for another. (N, D), (N,) -> (N,), (N,)
    """
    known = np.flatnonzero(labels >= 0)
    wrong, suggested = np.zeros(len(labels), np.float32), np.zeros(len(labels), np.int64)
    own = labels[known]
    votes = Votes.fit(
        unit(np.asarray(features, np.float32)[known]), own, classes, None if group is None else group[known]
    )
    given, best = np.empty(len(known)), np.empty(len(known), np.int64)
    for start in range(0, len(known), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(known)))
        shares = votes.probabilities(rows)
        given[rows] = shares[np.arange(len(rows)), own[rows]]
        shares[np.arange(len(rows)), own[rows]] = -1
        best[rows] = shares.argmax(1)
    noise = find_noise(given, classes)[0]
    wrong[known], suggested[known] = probably_wrong(given, classes, noise), best
    return wrong, suggested


def find_noise(given: Array, classes: int) -> tuple[float, float]:
    """Return the share of wrong labels that fits best, and the mean log probability of the labels under it.

    ``given`` has, for each image, the probability of its label by the other images. (N,)
    """
    noise = NOISE
    for _ in range(ROUNDS):
        noise = float(np.clip(probably_wrong(given, classes, noise).mean(), *NOISE_LIMITS))
    likely = (1 - noise) * given + noise * (1 - given) / max(1, classes - 1)
    return noise, float(np.log(np.maximum(likely, LEAST)).mean())


def probably_wrong(given: Array, classes: int, noise: float) -> Array:
    """Return the probability that each label is wrong, where a share ``noise`` of all is. (N,) -> (N,)"""
    error = noise * (1 - given) / max(1, classes - 1)
    wrong: Array = error / np.maximum(error + (1 - noise) * given, LEAST)
    return wrong


@dataclass(frozen=True)
class Votes:
    """What the others say about each image."""

    basis: Array  # (N, r) orthonormal columns of the centered features
    shrink: Array  # (r,)
    hat: Array  # (N,) how much each image decides its own answer
    target: Array  # (r, C) the answers in the basis
    mean: Array  # (C,)
    labels: NDArray[np.int64]
    mates: dict[int, NDArray[np.int64]]  # image -> all images of its picture, where there are several
    strength: float
    temperature: float

    @classmethod
    def fit(cls, x: Floats, labels: NDArray[np.int64], classes: int, group: NDArray[np.int64] | None) -> Votes:
        """Choose strength and temperature by how probable the given labels are without themselves."""
        centered = x.astype(np.float64) - x.mean(0, dtype=np.float64)
        basis, size = _orthonormal(centered)
        ones = np.zeros((len(labels), classes))
        ones[np.arange(len(labels)), labels] = 1
        target, mean = basis.T @ ones, ones.mean(0)
        mates = _mates(group)
        some = np.random.default_rng(0).permutation(len(labels))[:SAMPLE]
        best: tuple[float, Votes] | None = None
        for strength in STRENGTHS:
            shrink = size**2 / (size**2 + strength)
            hat = np.minimum((basis**2) @ shrink + 1 / len(labels), 1 - 1e-6)
            one = cls(basis, shrink, hat, target, mean, labels, mates, strength, 1.0)
            answers = one.answers(some)
            for temperature in TEMPERATURES:
                given = _softmax(answers / temperature)[np.arange(len(some)), labels[some]]
                _, likely = find_noise(given, classes)
                if best is None or likely > best[0]:
                    best = likely, cls(basis, shrink, hat, target, mean, labels, mates, strength, temperature)
        assert best is not None
        return best[1]

    def answers(self, rows: NDArray[np.int64]) -> Array:
        """Return what the model without an image and its copies says about it. (n,) -> (n, C)"""
        fitted = (self.basis[rows] * self.shrink) @ self.target + self.mean
        residual = -fitted
        residual[np.arange(len(rows)), self.labels[rows]] += 1
        without = fitted - residual * (self.hat[rows] / (1 - self.hat[rows]))[:, None]
        for place, image in enumerate(rows.tolist()):
            if image in self.mates:
                without[place] = self._without(image)
        return without

    def _without(self, image: int) -> Array:
        """Return the answer without a whole group: Y − (1 − H)⁻¹ (Y − HY) for the rows of the group."""
        mates = self.mates[image]
        own = self.basis[mates]
        block = np.eye(len(mates)) - (own * self.shrink) @ own.T - 1 / len(self.labels)
        fitted = (own * self.shrink) @ self.target + self.mean
        ones = np.zeros_like(fitted)
        ones[np.arange(len(mates)), self.labels[mates]] = 1
        place = int(np.flatnonzero(mates == image)[0])
        answer: Array = (ones - np.linalg.solve(block, ones - fitted))[place]
        return answer

    def probabilities(self, rows: NDArray[np.int64]) -> Array:
        return _softmax(self.answers(rows) / self.temperature)


def _orthonormal(centered: Array) -> tuple[Array, Array]:
    """Return the left singular vectors and the singular values, by the smaller of the two products."""
    if len(centered) >= centered.shape[1]:
        values, right = np.linalg.eigh(centered.T @ centered)
        size = np.sqrt(np.maximum(values, 0))
        kept = size > 1e-6 * max(size.max(initial=0), LEAST)
        return (centered @ right[:, kept]) / size[kept], size[kept]
    values, left = np.linalg.eigh(centered @ centered.T)
    size = np.sqrt(np.maximum(values, 0))
    kept = size > 1e-6 * max(size.max(initial=0), LEAST)
    return left[:, kept], size[kept]


def _mates(group: NDArray[np.int64] | None) -> dict[int, NDArray[np.int64]]:
    if group is None:
        return {}
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return {int(image): part for part in parts if len(part) > 1 for image in part}


def _softmax(values: Array) -> Array:
    shares: Array = np.exp(values - values.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares
