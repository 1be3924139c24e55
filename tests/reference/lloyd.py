"""k-means on the sphere, one image after the other."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def lloyd(points: Array, centers: Array, rounds: int) -> Array:
    """Each point to its nearest center, each center to the mean of its points, of length 1."""
    centers = np.array(centers, np.float64)
    for _ in range(rounds):
        sums, counts = np.zeros_like(centers), [0] * len(centers)
        for point in points:
            nearest = max(range(len(centers)), key=lambda n: float(point @ centers[n]))
            sums[nearest] += point
            counts[nearest] += 1
        for n, count in enumerate(counts):
            if count:
                centers[n] = sums[n] / np.linalg.norm(sums[n])
    return centers


def closeness(points: Array, centers: Array) -> float:
    """What k-means on the sphere makes as large as it can: the mean cosine of a point with its nearest center."""
    return float(np.mean([max(float(point @ center) for center in centers) for point in points]))


def purity(labels: list[int], classes: list[str]) -> float:
    """The share of images whose cluster is mostly of their class."""
    right = 0
    for label in set(labels):
        inside = [name for own, name in zip(labels, classes, strict=True) if own == label]
        right += max(inside.count(name) for name in set(inside))
    return right / len(labels)
