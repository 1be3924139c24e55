"""Tensors that may be larger than the memory."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SMALL = 64 * 2**20  # bytes: below, memory is as good


def disk_tensor(shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None = None, small: int = SMALL) -> Tensor:
    """Return zeros that the system keeps on the disk and reads as needed, in a file that ends with the tensor.

    The file has no name and takes no space until it is written to. It is in ``folder``, else in that of temporary
    files. Tensors below ``small`` bytes are plain ones.
    """
    zeros = torch.zeros(0, dtype=dtype).numpy()
    size = math.prod(shape) * zeros.itemsize
    if size < small:
        return torch.zeros(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return torch.from_numpy(np.memmap(file, zeros.dtype, "r+", shape=shape))
