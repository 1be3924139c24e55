"""The sequential test of two candidates in plain loops: exact fractions, and sums over bets for the interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

STEPS = 2000  # of the integral over bets


def e_value(clicks: Sequence[int]) -> Fraction:
    """2ⁿ ∫ pᵇ (1 − p)ᵃ dBeta(3, 3), click by click: the next click for B has probability (b + 3) / (n + 6)."""
    capital, a, b = Fraction(1), 0, 0
    for click in clicks:
        if click > 0:
            capital *= Fraction(2 * (b + 3), a + b + 6)
            b += 1
        elif click < 0:
            capital *= Fraction(2 * (a + 3), a + b + 6)
            a += 1
    return capital


def capital(clicks: Sequence[int], mean: float) -> float:
    """The mean capital of all who bet that the mean is another one; bets have the density 15/16 (1 − λ²)²."""
    total = 0.0
    for step in range(STEPS):
        bet = -1 + 2 * (step + 0.5) / STEPS
        stake = bet / (1 + mean) if bet > 0 else bet / (1 - mean)
        product = 1.0
        for click in clicks:
            product *= 1 + stake * (click - mean)
        total += 15 / 16 * (1 - bet * bet) ** 2 * product * 2 / STEPS
    return total


def bound(clicks: Sequence[int], sign: int, alpha: float = 0.05) -> float:
    """The mean above (sign 1) or below (-1) that of the clicks at which the capital reaches 1 / alpha, by halving."""
    inside, outside = sum(clicks) / len(clicks), float(sign)
    if inside == outside:
        return outside  # nobody can lose who bets on what always happened
    for _ in range(20):
        middle = (inside + outside) / 2
        if capital(clicks, middle) < 1 / alpha:
            inside = middle
        else:
            outside = middle
    return inside


def first_decision(clicks: Sequence[int], alpha: float = 0.05) -> int | None:
    """The first click after which the e-value is 1 / alpha or more."""
    for count in range(1, len(clicks) + 1):
        if e_value(clicks[:count]) >= 1 / Fraction(str(alpha)):
            return count
    return None


def preferences(
    nearest_a: Sequence[int], nearest_b: Sequence[int], labels: Sequence[int]
) -> tuple[list[int], float, float]:
    """What a judge who knows the labels says of each query whose answers differ, and rank-1 of A and B in percent."""
    said, right_a, right_b = [], 0, 0
    for query, (one, other) in enumerate(zip(nearest_a, nearest_b, strict=True)):
        a, b = labels[one] == labels[query], labels[other] == labels[query]
        right_a, right_b = right_a + a, right_b + b
        if one != other:
            said.append(int(b) - int(a))
    return said, 100 * right_a / len(labels), 100 * right_b / len(labels)


def nearest(features: Sequence[Sequence[float]]) -> list[int]:
    """The other row with the largest cosine, the first of several."""
    found = []
    for i, row in enumerate(features):
        best, where = -math.inf, -1
        for j, other in enumerate(features):
            dot = sum(x * y for x, y in zip(row, other, strict=True))
            cosine = dot / math.sqrt(sum(x * x for x in row) * sum(y * y for y in other))
            if i != j and cosine > best + 1e-9:
                best, where = cosine, j
        found.append(where)
    return found
