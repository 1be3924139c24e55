"""The moving average of weights, number by number."""

import numpy as np
from numpy.typing import NDArray


def averaged(history: list[NDArray[np.float64]], start: NDArray[np.float64], m: float) -> NDArray[np.float64]:
    """What a twin that began as ``start`` is after following each of ``history`` in turn."""
    twin = start.copy()
    for online in history:
        for at in np.ndindex(*twin.shape):
            twin[at] = m * twin[at] + (1 - m) * online[at]
    return twin
