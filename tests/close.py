"""What "the same but for rounding" means: rows that differ by at most 1e-5 of their length."""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDING = 1e-5


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest distance between rows of two arrays, relative to the length of the second's."""
    x, y = (np.asarray(value, np.float64).reshape(len(value), -1) for value in (a, b))
    assert x.shape == y.shape
    return float((np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)).max())


def same_rows(a: Any, b: Any) -> bool:
    """Return whether all rows are the same but for rounding."""
    return largest_difference(a, b) <= ROUNDING
