"""Features too wide to keep in float32: stored in 16 bits, and read in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

BATCH = 64
WIDE = 16_384  # columns; features with more are kept in 16 bits
BLOCK_BYTES = 64 * 2**20  # of a matrix that is held in float64 at a time
TOP = 15  # the largest number of a row is kept below 2¹⁵; 16 bits end just below 2¹⁶


@dataclass(frozen=True, eq=False)
class WideRows:
    """Features (N, D) stored in 16 bits and read in float32.

    Each row is divided by the power of two that brings its largest number into [2¹⁴, 2¹⁵): nothing overflows, and
    numbers down to 2⁻²⁸ of the largest keep 11 bits. CUB's 11,788 images of 65,536 numbers take 1.5 GB, half of what
    float32 takes. Indexing by rows, or by rows and columns, copies nothing; ``tensor``, ``np.asarray`` and iteration
    give the numbers.
    """

    values: NDArray[np.float16] | NDArray[np.float32]  # (M, D)
    rows: NDArray[np.int64]  # (N,) which of them
    scale: NDArray[np.float64]  # (N,) and times what

    @classmethod
    def empty(cls, count: int, width: int) -> Self:
        """Return uninitialized rows, to be assigned to."""
        return cls(np.empty((count, width), np.float16), np.arange(count), np.ones(count))

    @classmethod
    def of(cls, features: Features) -> WideRows:
        """Wrap an array without a copy."""
        if isinstance(features, WideRows):
            return features
        return cls(features, np.arange(len(features)), np.ones(len(features)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.values.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> WideRows:
        """Return some rows, or some rows and a slice of the columns."""
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
        """Return all numbers as an array."""
        if copy is False:
            raise ValueError("wide features become an array only by a copy")
        numbers = self.tensor(torch.float64 if dtype == np.float64 else torch.float32).numpy()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def tensor(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a new tensor (N, D)."""
        return torch.from_numpy(self.values[self.rows]).to(dtype).mul_(torch.from_numpy(self.scale).to(dtype)[:, None])

    def times(self, factors: NDArray[np.float64]) -> WideRows:
        """Return each row times its own factor; the stored numbers are shared."""
        return WideRows(self.values, self.rows, self.scale * factors)


Features = NDArray[np.float32] | WideRows


def concatenate(*parts: Features) -> Features:
    """Return the rows of all, which are at least one."""
    if len(parts) == 1:
        return parts[0]
    wide = [part for part in parts if isinstance(part, WideRows)]
    if len(wide) < len(parts):
        return np.concatenate(parts)
    starts = np.cumsum([0, *(len(part.values) for part in wide[:-1])])
    rows = np.concatenate([start + part.rows for start, part in zip(starts, wide, strict=True)])
    scale = np.concatenate([part.scale for part in wide])
    return WideRows(np.concatenate([part.values for part in wide]), rows, scale)


def is_wide(features: Features) -> bool:
    """Return whether features must be read in parts: there are too many columns, or they are kept in 16 bits."""
    return isinstance(features, WideRows) or features.shape[1] > WIDE


def row_lengths(features: Features, block_bytes: int | None = None) -> NDArray[np.float64]:
    """Return the length of each row, (N,); not finite where a number of the row is not."""
    step = max(1, (block_bytes or BLOCK_BYTES) // (8 * max(1, features.shape[1])))
    lengths = np.empty(len(features))
    for start in range(0, len(features), step):
        block = np.asarray(features[start : start + step], np.float64)
        lengths[start : start + step] = np.linalg.norm(block, axis=1)
    return lengths
