"""Find images that are like no other."""

from __future__ import annotations

import numpy as np

from finesight.features.types import Floats

FAR = 3.0  # robust standard deviations
SHARE, LEAST_NEAR, MOST_NEAR = 0.05, 20, 300  # of the images that one is compared with: more than an odd group has
NORMAL = 1.4826  # the standard deviation of normal numbers, by their median absolute deviation
LEAST = 1e-6  # of the deviation: where all images are alike, none is far


def compared(images: int) -> int:
    """Return with how many of its nearest images each is compared."""
    return min(MOST_NEAR, max(LEAST_NEAR, round(SHARE * images)))


def far_from_all(cosines: Floats) -> Floats:
    """Return how far each image lies from those most like it, in robust standard deviations. (N, k) -> (N,)

    The distance is 1 − the mean cosine to its nearest images; what is usual is the median over all images.
    """
    if not cosines.shape[1]:
        return np.zeros(len(cosines), np.float32)
    distance = 1 - cosines.mean(1, dtype=np.float64)
    middle = np.median(distance)
    spread = NORMAL * np.median(np.abs(distance - middle))
    deviations: Floats = ((distance - middle) / max(spread, LEAST)).astype(np.float32)
    return deviations
