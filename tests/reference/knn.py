"""k nearest neighbors with a weighted vote, by sorting everything, in plain loops."""

import math

import numpy as np
from numpy.typing import NDArray


def vote(
    train: NDArray[np.float64], labels: list[int], query: NDArray[np.float64], k: int, temperature: float = 0.07
) -> int:
    """The class with the largest sum of exp(cosine / temperature) over the k nearest; the lowest of equal ones.

    Neighbors of the same cosine come in the order of their index.
    """

    def cosine(one: NDArray[np.float64]) -> float:
        lengths = math.sqrt(sum(v * v for v in one)) * math.sqrt(sum(v * v for v in query))
        return sum(a * b for a, b in zip(one, query, strict=True)) / lengths if lengths else 0.0

    ranked = sorted((-round(cosine(one), 9), i) for i, one in enumerate(train) if labels[i] >= 0)[:k]
    votes: dict[int, float] = {}
    for negative, i in ranked:
        votes[labels[i]] = votes.get(labels[i], 0.0) + math.exp(-negative / temperature)
    most = max(votes.values())
    return min(label for label, total in votes.items() if total >= most * (1 - 1e-9))
