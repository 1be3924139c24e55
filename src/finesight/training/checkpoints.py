"""Checkpoints: written atomically, the last two kept, read without unpickling code.

What is known of each image is in files of its own, ``rows-….npz``, that several checkpoints may name.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.io.tensors import save_state

KEEP = 2


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``step-….pt`` atomically, remove the oldest and what killed processes left, and return the file.

    Only the process that has locked the run may call it.
    """
    final = folder / f"step-{step:08d}.pt"
    with atomic_path(final, sync=True) as scratch:
        save_state(state, scratch)
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


def step_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was written, as its name says."""
    return int(checkpoint.stem.removeprefix("step-"))


class DoesNotFit(Exception):
    """A checkpoint that can be read is not one of this run."""


@contextmanager
def must_fit(file: Path) -> Iterator[None]:
    """Turn what loading the content of a checkpoint raises into ``DoesNotFit``."""
    try:
        yield
    except (FineSightError, OSError, MemoryError):
        raise
    except Exception as error:  # PyTorch raises whatever it runs into
        reason = str(error).strip().partition("\n")[0]
        raise DoesNotFit(f"{file.name} is not a checkpoint of this run ({reason})") from error


def readable_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the checkpoints that can be read, the newest first, each with its file; a line tells of the others.

    What is known of each image is put into the module's state as ``hook.…``, and whose it is into ``images``.
    """
    for file in reversed(checkpoints(folder)):
        try:
            state = _read(file)
        except OSError as error:
            reason = error.strerror or str(error)
        except Exception:  # garbage fails in ways of its own: KeyError, IndexError, UnicodeDecodeError …
            reason = "its content is damaged"
        else:
            yield file, state
            continue
        console.print(f"{file} cannot be read: {reason}.", markup=False)


def load_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the first of ``readable_checkpoints``, or None if there are none at all.

    Raises FineSightError if there are checkpoints and none can be read.
    """
    found = next(readable_checkpoints(folder), None)
    if found is None and checkpoints(folder):
        raise none_usable(folder)
    return found


def none_usable(folder: Path) -> FineSightError:
    return FineSightError(f"No checkpoint in {folder} can be read. Begin anew with --restart.")


def _read(file: Path) -> dict[str, Any]:
    """Read a checkpoint without running anything in it. Each part of the file has a checksum, which PyTorch ignores."""
    with zipfile.ZipFile(file) as archive:
        if broken := archive.testzip():
            raise ValueError(f"{broken} is not what was written")
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError("it is no table")
    if "rows" in state:
        with np.load(file.parent / Path(state["rows"]).name, allow_pickle=False) as rows:
            state["images"] = torch.from_numpy(rows["images"])
            own = {f"hook.{name}": torch.from_numpy(rows[name]) for name in rows.files if name != "images"}
            state["module"].update(own)
    return state
