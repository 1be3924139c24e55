"""How much of each cell of a grid a box covers, from the corners alone."""

import numpy as np
from numpy.typing import NDArray


def share(box: tuple[float, float, float, float], resolution: int, rows: int, columns: int) -> NDArray[np.float64]:
    """x, y, width, height in a square of ``resolution`` pixels -> (rows, columns) in [0, 1]"""
    x, y, width, height = box
    cell_h, cell_w = resolution / rows, resolution / columns
    result = np.zeros((rows, columns))
    for row, column in np.ndindex(rows, columns):
        down = min(y + height, (row + 1) * cell_h) - max(y, row * cell_h)
        across = min(x + width, (column + 1) * cell_w) - max(x, column * cell_w)
        result[row, column] = max(0.0, down) * max(0.0, across) / (cell_h * cell_w)
    return result
