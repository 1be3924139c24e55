"""Checkpoints: written atomically, the last two kept, read without unpickling code.

What is known of each image is in files of its own, ``rows-….npz``, that several checkpoints may name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def save_rows(folder: Path, step: int, rows: Mapping[str, Tensor]) -> str:
    """Write what is known of each image and return the name of the file, for a checkpoint's ``rows``."""
    name, arrays = f"rows-{step:08d}.npz", {key: value.numpy() for key, value in rows.items()}
    with atomic_path(folder / name, sync=True) as scratch:
        np.savez(scratch, allow_pickle=False, **arrays)
    return name


def remove_rows(folder: Path, kept: Iterable[str]) -> None:
    """Remove all files of ``save_rows`` but those, and what killed processes left."""
    names = set(kept)
    for file in (*folder.glob("rows-*.npz"), *folder.glob(".rows-*")):
        if file.name not in names:
            file.unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, the oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest checkpoint that can be read and its file, or None without any.

    What is known of each image is put into the module's state as ``hook.…``, and whose it is into ``images``. Raises
    FineSightError if there are checkpoints and none can be read.
    """
    files = checkpoints(folder)
    for file in reversed(files):
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            if "rows" in state:
                with np.load(folder / state["rows"], allow_pickle=False) as rows:
                    state["images"] = torch.from_numpy(rows["images"])
                    own = {f"hook.{name}": torch.from_numpy(rows[name]) for name in rows.files if name != "images"}
                    state["module"].update(own)
            return file, state
        except Exception:  # garbage fails in ways of its own: KeyError, IndexError, UnicodeDecodeError …
            continue
    if files:
        raise FineSightError(f"No checkpoint in {folder} can be read. Begin anew with --restart.")
    return None
