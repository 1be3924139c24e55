"""Features too wide for float32, kept in half the room and looked at in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

BATCH = 64
WIDE = 16_384  # columns; features with more are kept in 16 bits
BLOCK_BYTES = 64 * 2**20  # of a wide matrix, the part held in float64 at a time
TOP = 15  # the largest number of a row is kept below 2¹⁵; 16 bits end just below 2¹⁶


@dataclass(frozen=True, eq=False)
class WideRows:
    """Features (N, D) too wide to hold in float32, read in float32 where they are looked at.

    A row is kept in 16 bits, divided by the power of two that brings its largest number into [2¹⁴, 2¹⁵): nothing
    overflows, and numbers down to 2⁻²⁸ of the largest keep 11 bits. CUB's 11,788 images of 65,536 numbers take 1.5 GB
    so, where float32 takes 3.1. Rows, or rows and columns, are chosen as those of an array are, and nothing is copied;
    ``tensor``, ``np.asarray`` and iteration then give numbers.
    """

    values: NDArray[np.float16] | NDArray[np.float32]  # (M, D)
    rows: NDArray[np.int64]  # (N,) which of them
    scale: NDArray[np.float64]  # (N,) and times what

    @classmethod
    def empty(cls, count: int, width: int) -> Self:
        """Room for as many, to be assigned to by rows."""
        return cls(np.empty((count, width), np.float16), np.arange(count), np.ones(count))

    @classmethod
    def of(cls, features: Features) -> WideRows:
        """An array as it is, without a copy."""
        if isinstance(features, WideRows):
            return features
        return cls(features, np.arange(len(features)), np.ones(len(features)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.values.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> WideRows:
        """The same numbers, fewer of them; columns are a slice."""
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return WideRows(self.values[:, columns], self.rows[rows], self.scale[rows])

    def __setitem__(self, rows: slice, features: NDArray[np.float32]) -> None:
        given = torch.from_numpy(features).double()
        _, exponent = np.frexp(given.abs().amax(1).numpy())
        self.scale[rows] = np.ldexp(1.0, np.clip(exponent - TOP, -149, 113))  # as float32 can hold
        self.values[self.rows[rows]] = (given / torch.from_numpy(self.scale[rows])[:, None]).half().numpy()

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(self), BATCH):
            yield from np.asarray(self[start : start + BATCH])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it in float32, for those who have the room."""
        if copy is False:
            raise ValueError("wide features are given as numbers by a copy only")
        numbers = self.tensor(torch.float64 if dtype == np.float64 else torch.float32).numpy()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def tensor(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(N, D), new."""
        return torch.from_numpy(self.values[self.rows]).to(dtype).mul_(torch.from_numpy(self.scale).to(dtype)[:, None])

    def times(self, factors: NDArray[np.float64]) -> WideRows:
        """Each row by its own factor, without touching the numbers."""
        return WideRows(self.values, self.rows, self.scale * factors)


Features = NDArray[np.float32] | WideRows


def joined(first: Features, second: Features) -> Features:
    """One below the other."""
    if isinstance(first, WideRows) and isinstance(second, WideRows):
        rows = np.concatenate([first.rows, len(first.values) + second.rows])
        scale = np.concatenate([first.scale, second.scale])
        return WideRows(np.concatenate([first.values, second.values]), rows, scale)
    return np.concatenate([first, second])


def row_lengths(features: Features) -> NDArray[np.float64]:
    """(N,); not finite where a number of the row is not, as squares of float32 cannot overflow float64."""
    step = max(1, BLOCK_BYTES // (8 * max(1, features.shape[1])))
    lengths = np.empty(len(features))
    for start in range(0, len(features), step):
        block = np.asarray(features[start : start + step], np.float64)
        lengths[start : start + step] = np.linalg.norm(block, axis=1)
    return lengths
