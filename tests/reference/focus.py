"""ContrastiveCrop of one image: the box of a map, and between which corners a crop may begin."""

import numpy as np
from numpy.typing import NDArray

from reference.localization import upsample

Array = NDArray[np.float64]


def box(attention: Array, threshold: float, resolution: int) -> tuple[float, float, float, float]:
    """Top, left, bottom, right of what is above the threshold, as shares of the side."""
    low, high = min(attention.flat), max(attention.flat)
    if low == high:
        return 0.0, 0.0, 1.0, 1.0
    scaled = np.zeros_like(attention)
    for at in np.ndindex(*attention.shape):
        scaled[at] = (attention[at] - low) / (high - low)
    fine = upsample(scaled, resolution, resolution)
    above = [at for at in np.ndindex(resolution, resolution) if fine[at] > threshold]
    if not above:  # the peak lies between the pixels
        return 0.0, 0.0, 1.0, 1.0
    rows, columns = [row for row, _ in above], [column for _, column in above]
    edges = (min(rows), min(columns), max(rows) + 1, max(columns) + 1)
    top, left, bottom, right = (edge / resolution for edge in edges)
    return top, left, bottom, right


def edges(low: float, high: float, size: int, crop: int) -> tuple[float, float]:
    """Along one axis: where a crop about either edge of the box begins, the whole crop inside the image."""
    places = []
    for edge in (low, high):
        start = edge * size - crop / 2
        start = max(start, 0.0)
        places.append(min(start, float(size - crop)))
    return places[0], places[1]
