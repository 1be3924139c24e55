"""φ of a vision transformer, patch by patch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def token_map(tokens: NDArray[np.float32], prefix: int, rows: int, columns: int) -> NDArray[np.float32]:
    """Put the token of patch (i, j) at cell (i, j); they come row by row. (N, P + HW, C) -> (N, C, H, W)"""
    images, _, channels = tokens.shape
    phi = np.full((images, channels, rows, columns), np.nan, np.float32)
    for n in range(images):
        for i in range(rows):
            for j in range(columns):
                phi[n, :, i, j] = tokens[n, prefix + i * columns + j]
    return phi
