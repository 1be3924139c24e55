"""Write tensors to files such that a full disk is an ``OSError``, as it is for every other file."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file; raise ``OSError`` if that fails."""
    try:
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, file)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def save_state(state: dict[str, Any], file: Path) -> None:
    """Write what ``torch.load`` reads; raise ``OSError`` if that fails.

    PyTorch's own writer reports a full disk as an internal error. A file of Python's is used, whose error is kept.
    """
    with file.open("wb", buffering=0) as stream:
        keeper = _ErrorKeeper(stream)
        try:
            torch.save(state, keeper)  # type: ignore[arg-type]
        except Exception:
            if keeper.error is not None:
                raise keeper.error from None
            raise
        if keeper.error is not None:
            raise keeper.error


class _ErrorKeeper:
    """A stream that remembers the first error of the system."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view, done = memoryview(data).cast("B"), 0
        try:
            while done < len(view):  # the disk may take a part
                done += self.stream.write(view[done:])
        except OSError as error:
            self.error = self.error or error
            raise
        return done

    def flush(self) -> None:
        self.stream.flush()
