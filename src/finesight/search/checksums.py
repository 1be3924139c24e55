"""Checksums of the vectors of an index: whether each row still is what was written.

A row's checksum is the CRC-32 of its bytes in all spaces. One core checks some 2 GB/s (docs/reliability.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finesight.features.types import Floats

BLOCK = 1024  # rows that are read at a time
CHECKED_BYTES = 512 * 2**20  # of vectors that are checked whenever an index is opened: a quarter of a second


def row_sums(vectors: Sequence[Floats]) -> list[int]:
    """Return the checksum of each row over all arrays, which have as many rows. [(n, D), …] -> n numbers"""
    sums = [0] * len(vectors[0])
    for array in vectors:
        rows = np.ascontiguousarray(array, np.float32)
        sums = [zlib.crc32(row.data, known) for row, known in zip(rows, sums, strict=True)]
    return sums


def damaged_rows(
    vectors: Sequence[Floats], owned: NDArray[np.bool_], known: NDArray[np.int64], sums: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the owned rows that are not what was written, or hold something that is not a number, ascending.

    ``known`` are the rows that have a checksum, ascending, and ``sums`` those; indexes of earlier versions have none.
    """
    expected = np.full(len(owned), -1, np.int64)
    inside = (known >= 0) & (known < len(owned))
    expected[known[inside]] = sums[inside]
    found: list[int] = []
    for start in range(0, len(owned), BLOCK):
        rows = start + np.flatnonzero(owned[start : start + BLOCK])
        if not len(rows):
            continue
        blocks = [np.asarray(array[start : start + BLOCK])[rows - start] for array in vectors]
        finite = np.logical_and.reduce([np.isfinite(block).all(1) for block in blocks])
        changed = np.array(row_sums(blocks), np.int64) != expected[rows]
        found += rows[~finite | (changed & (expected[rows] >= 0))].tolist()
    return np.array(found, np.int64)
