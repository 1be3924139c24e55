"""A test that may be looked at after every click: which of two candidates a person prefers, and by how much.

Every click is +1 (B is preferred), -1 (A) or 0 (both or neither). A bettor who believes that the mean is not m stakes a
share λ of the capital on every click; the capital 1 becomes Π (1 + λ (x - m)). If the mean is m, no bet makes the
capital grow on average, so it reaches 1 / α with a probability of at most α, whenever one looks (Ville's inequality).
The capital is averaged over many λ. At m = 0 it is the e-value of "neither is preferred", where a click for both or
neither changes nothing; the m whose capital is below 1 / α are the interval. See Waudby-Smith and Ramdas, Estimating
means of bounded random variables by betting (2024).

Clicks for a finite number of pictures in random order, none shown twice, keep the test of m = 0 valid without any
assumption about the pictures: the bet then goes against what is left, so that the capital grows even less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_jacobi

ALPHA = 0.05
BETS = 128  # values of λ; any number of them gives a valid test
SPREAD = 3.0  # (1 + λ) / 2 is drawn from Beta(3, 3): about the best for preferences of 55 to 80 %
FEW = 4  # preferences: before them there is nothing to guess from
MEANS = 2001  # values of m from -1 to 1 that the interval is made of

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Evidence:
    """What the clicks say so far."""

    a: int  # clicks that prefer A
    b: int
    ties: int
    e_value: float  # the largest so far; 1 / α decides
    decided_at: int | None  # the click that decided
    low: float  # interval of the mean click, valid at any time, in [-1, 1]
    high: float

    @property
    def clicks(self) -> int:
        return self.a + self.b + self.ties

    @property
    def mean(self) -> float:
        """How much more often B was preferred, from -1 to 1."""
        return (self.b - self.a) / self.clicks if self.clicks else 0.0

    @property
    def winner(self) -> str | None:
        """Return "a" or "b" once the test has decided."""
        if self.decided_at is None:
            return None
        return "b" if self.b > self.a else "a"

    def clicks_left(self, alpha: float = ALPHA) -> int | None:
        """Guess how many more clicks decide if they go on as so far; None if too few are there or it would not end."""
        if self.decided_at is not None:
            return 0
        decided = self.a + self.b
        if decided < FEW:
            return None
        p = (max(self.a, self.b) + SPREAD) / (decided + 2 * SPREAD)
        growth = (np.log(2) + p * np.log(p) + (1 - p) * np.log(1 - p)) * decided / self.clicks
        now = log_e_values(np.array([self.a]), np.array([self.b]))[0]
        return int(np.ceil((-np.log(alpha) - now) / growth)) if growth > 1e-9 else None


def weigh(clicks: Sequence[int] | NDArray[np.integer], alpha: float = ALPHA) -> Evidence:
    """Weigh clicks in their order: +1 prefers B, -1 prefers A, 0 neither.

    Clicks after the one that decided are not weighed: whoever looks after every click would have stopped there.
    """
    x = np.asarray(clicks, dtype=np.int64).reshape(-1)
    if not np.isin(x, (-1, 0, 1)).all():
        raise ValueError("a click is -1, 0 or 1")
    b, a = np.cumsum(x > 0, dtype=np.int64), np.cumsum(x < 0, dtype=np.int64)
    logs = log_e_values(a, b)
    reached = np.flatnonzero(logs >= -np.log(alpha))
    decided_at = int(reached[0]) + 1 if len(reached) else None
    if decided_at is not None:  # what came later is not weighed
        x, logs = x[:decided_at], logs[:decided_at]
    counts = int((x < 0).sum()), int((x > 0).sum()), int((x == 0).sum())
    e_value = float(np.exp(min(logs.max(initial=0.0), 700.0)))
    return Evidence(*counts, e_value, decided_at, *mean_interval(*counts, alpha))


def log_e_values(a: Counts, b: Counts) -> Floats:
    """Return the log of the e-value after clicks of which ``a`` prefer A and ``b`` prefer B. (T,) each -> (T,)"""
    return log_capital(a, b, np.zeros_like(a), 0.0)


def log_capital(a: Counts, b: Counts, ties: Counts, mean: float) -> Floats:
    """Return the log of the capital of those who bet against ``mean``, in (-1, 1). (T,) each -> (T,)"""
    up, down, level = _factors(np.array(mean))  # (BETS,) each
    logs = b[:, None] * up + a[:, None] * down + ties[:, None] * level  # (T, BETS)
    return _log_mean(logs)


@lru_cache(maxsize=256)
def mean_interval(a: int, b: int, ties: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the means of a click whose capital is below 1 / alpha, from the smallest to the largest."""
    grid = np.linspace(-1, 1, MEANS)[1:-1]
    up, down, level = _grid_factors()
    capital = _log_mean(b * up + a * down + ties * level)  # (MEANS - 2,)
    kept = np.flatnonzero(capital < -np.log(alpha))
    ends = np.concatenate([[-1.0], grid, [1.0]])
    if not len(kept):  # so many clicks that the interval lies between two values of m
        kept = np.array([np.abs(grid - (b - a) / (a + b + ties)).argmin()])
    return float(ends[kept[0]]), float(ends[kept[-1] + 2])  # one step outward, so that no mean is lost


@lru_cache(maxsize=1)
def _bets() -> tuple[Floats, Floats]:
    """Return values of λ in (-1, 1) and their weights, which sum to 1: the capital is exact up to 255 clicks."""
    nodes, weights = roots_jacobi(BETS, SPREAD - 1, SPREAD - 1)
    return nodes, weights / weights.sum()


def _log_mean(logs: Floats) -> Floats:
    """Return the log of the mean over bets. (..., BETS) -> (...)"""
    largest = logs.max(axis=-1, keepdims=True)
    mean: Floats = np.log(np.exp(logs - largest) @ _bets()[1]) + largest[..., 0]
    return mean


def _factors(mean: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the log of the factor of a click +1, -1 and 0, for every bet against ``mean``: (...) -> (..., BETS) each.

    A bet of 1 stakes all that a click of -1 can take, a bet of -1 all that a click of +1 can.
    """
    bets, m = _bets()[0], mean[..., None]
    stake = np.where(bets > 0, bets / (1 + m), bets / (1 - m))
    return np.log1p(stake * (1 - m)), np.log1p(-stake * (1 + m)), np.log1p(-stake * m)


@lru_cache(maxsize=1)
def _grid_factors() -> tuple[Floats, Floats, Floats]:
    return _factors(np.linspace(-1, 1, MEANS)[1:-1])
