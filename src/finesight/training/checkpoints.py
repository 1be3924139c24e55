"""Checkpoints: written atomically, the last two kept, read without unpickling code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from finesight.errors import FineSightError

KEEP = 2


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``step-….pt`` under a temporary name, flush it to the disk, then rename and drop the oldest."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}.pt"
    scratch = folder / f".{final.name}.tmp"
    with scratch.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(scratch, final)
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest one that can be read; None when there is none."""
    found = checkpoints(folder)
    for file in reversed(found):
        try:
            return file, torch.load(file, map_location="cpu", weights_only=True)
        except Exception:  # garbage fails in ways of its own: KeyError, IndexError, UnicodeDecodeError …
            continue
    if found:
        raise FineSightError(f"No checkpoint in {folder} can be read. Begin anew with --restart.")
    return None
