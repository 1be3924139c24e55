"""Checkpoints: written atomically, the last two kept, read without unpickling code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path

KEEP = 2


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``step-….pt`` atomically, remove the oldest and what killed processes left, and return the file.

    Only the process that has locked the run may call it.
    """
    final = folder / f"step-{step:08d}.pt"
    with atomic_path(final, sync=True) as scratch:
        torch.save(state, scratch)
    for old in (*checkpoints(folder)[:-KEEP], *folder.glob(".step-*")):
        old.unlink(missing_ok=True)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, the oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest checkpoint that can be read and its file, or None without any.

    Raises FineSightError if there are checkpoints and none can be read.
    """
    files = checkpoints(folder)
    for file in reversed(files):
        try:
            return file, torch.load(file, map_location="cpu", weights_only=True)
        except Exception:  # garbage fails in ways of its own: KeyError, IndexError, UnicodeDecodeError …
            continue
    if files:
        raise FineSightError(f"No checkpoint in {folder} can be read. Begin anew with --restart.")
    return None
