"""k-means on the sphere, one image after the other."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def lloyd(points: Array, centres: Array, rounds: int) -> Array:
    """Each point to its nearest centre, each centre to the mean of its points, of length 1."""
    centres = np.array(centres, np.float64)
    for _ in range(rounds):
        sums, counts = np.zeros_like(centres), [0] * len(centres)
        for point in points:
            nearest = max(range(len(centres)), key=lambda n: float(point @ centres[n]))
            sums[nearest] += point
            counts[nearest] += 1
        for n, count in enumerate(counts):
            if count:
                centres[n] = sums[n] / np.linalg.norm(sums[n])
    return centres


def closeness(points: Array, centres: Array) -> float:
    """What k-means on the sphere makes as large as it can: the mean cosine of a point with its nearest centre."""
    return float(np.mean([max(float(point @ centre) for centre in centres) for point in points]))


def purity(labels: list[int], classes: list[str]) -> float:
    """The share of images whose cluster is mostly of their class."""
    right = 0
    for label in set(labels):
        inside = [name for own, name in zip(labels, classes, strict=True) if own == label]
        right += max(inside.count(name) for name in set(inside))
    return right / len(labels)
