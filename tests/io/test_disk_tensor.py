"""Tensors on the disk behave as those in memory, and leave nothing behind."""

from pathlib import Path

import pytest
import torch

from finesight.io.disk_tensor import disk_tensor


@pytest.mark.parametrize("small", [0, 10**6], ids=["on the disk", "in memory"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_zeros_that_can_be_written_and_read(tmp_path: Path, small: int, dtype: torch.dtype) -> None:
    tensor = disk_tensor((7, 5, 3), dtype, tmp_path, small)
    assert tensor.dtype == dtype
    assert torch.equal(tensor, torch.zeros(7, 5, 3, dtype=dtype))
    tensor[2:4] = 9
    tensor[6].copy_(torch.full((5, 3), 200))
    assert tensor[torch.tensor([3, 6, 0])].amax((1, 2)).tolist() == [9, 200, 0]
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_a_large_one_takes_no_memory(tmp_path: Path) -> None:
    """A terabyte of zeros, of which one row is used."""
    tensor = disk_tensor((2**28, 64, 64), torch.uint8, tmp_path)
    tensor[2**27] = 1
    assert int(tensor[2**27].sum()) == 64 * 64
    assert int(tensor[2**27 + 1].sum()) == 0


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert disk_tensor((0, 4), torch.float32, tmp_path, 0 + 1).shape == (0, 4)
