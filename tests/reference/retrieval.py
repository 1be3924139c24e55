"""Leave-one-out retrieval: rank-k and AP over the full ranking, as plain loops in exact fractions."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


def ranking(features: NDArray[np.float64], query: int, gallery: list[int]) -> list[int]:
    """Gallery without the query, most alike first; equal cosines by index.

    Integer features are compared exactly: cos = dot / sqrt(n), so sign(dot) * dot² / n orders the same way.
    """

    def key(other: int) -> tuple[Fraction, int]:
        dot = sum(int(a) * int(b) for a, b in zip(features[query], features[other], strict=True))
        norm = sum(int(b) ** 2 for b in features[other])
        return (-Fraction(dot * abs(dot), norm) if norm else Fraction(0)), other

    return sorted((g for g in gallery if g != query), key=key)


def retrieval_scores(features: NDArray[np.float64], labels: list[int]) -> dict[str, object]:
    gallery = [i for i, label in enumerate(labels) if label >= 0]
    hit1, hit5, ap, lone = [], [], [], 0
    for query in gallery:
        relevant = [labels[other] == labels[query] for other in ranking(features, query, gallery)]
        if not any(relevant):
            lone += 1
            continue
        hit1.append(any(relevant[:1]))
        hit5.append(any(relevant[:5]))
        found, total = 0, 0.0
        for position, good in enumerate(relevant, start=1):
            if good:
                found += 1
                total += found / position
        ap.append(total / found)
    return {"hit1": hit1, "hit5": hit5, "ap": ap, "lone": lone}
