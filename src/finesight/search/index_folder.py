"""Find the folder of an index, name and lock its files, and refuse folders that hold anything else."""

from __future__ import annotations

import json
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from finesight.data.decode import explain_os_errors
from finesight.errors import FineSightError
from finesight.io.lock import Busy, acquire
from finesight.search.base import MODEL
from finesight.search.notes import NOTES

META, ITEMS, ENCODER, LOCK = "index.json", "items.db", "encoder", "lock"
RUN_INDEX = "index"  # folder of a run that its index is in
FROZEN_INDEX = "frozen/index"  # folder of a run that has the index of the network before training


def is_index(folder: Path) -> bool:
    """Return whether the folder holds an index that is complete."""
    return (folder / META).exists()


def find_index(where: str | Path) -> Path:
    """Return the folder of the index that is ``where``, or in the run ``where``; raise ``FineSightError`` if none.

    Of a run that has one before training and one after it, it is that of the encoder that was kept.
    """
    folder = Path(where).expanduser()
    in_run = [folder / RUN_INDEX, folder / FROZEN_INDEX]
    if _keeps_frozen(folder):
        in_run.reverse()
    for candidate in (folder, *in_run):
        if is_index(candidate):
            return candidate
    if not folder.exists():
        raise FineSightError(f"There is no index {folder}: nothing is there. Make one with `finesight index`.")
    if (folder / "encoder").exists() or (folder / "config.yaml").exists():
        raise FineSightError(f"The run {folder} has no index yet. Make one with `finesight index {folder} FOLDER`.")
    advice = f"Make one with `finesight index RUN FOLDER --index {folder}`."
    raise FineSightError(f"There is no index in {folder}. {advice}")


def place_of_notes(folder: Path) -> Path:
    """Return a file of the run if the index is in one, because a run replaces its indexes; else of the folder."""
    own = folder.resolve()
    for place in (FROZEN_INDEX, RUN_INDEX):
        run = own.parents[place.count("/")]
        if own == run / place and any((run / name).exists() for name in (ENCODER, "config.yaml", "frozen")):
            return run / NOTES
    return own / NOTES


def _keeps_frozen(run: Path) -> bool:
    """Return whether the verdict on a run was that the frozen features are better."""
    try:
        return bool(json.loads((run / "verdict.json").read_text(encoding="utf-8"))["kept"] == "frozen")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def refuse_foreign(folder: Path) -> None:
    """Raise ``FineSightError`` if ``folder`` is a file or holds anything that is not of an index."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FineSightError(f"{folder} is a file: --index must be a folder.")
    ours = {ENCODER, ITEMS, f"{ITEMS}-journal", LOCK, META, MODEL, NOTES, f"{NOTES}-journal"}
    scratch = (f".{ENCODER}.", f".{META}.", f".{MODEL}.")
    if any(path.name not in ours and not path.name.startswith(scratch) for path in folder.iterdir()):
        raise FineSightError(f"{folder} is not empty and holds no index: give --index a new folder.")


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock the folder for writing and return the handle that holds the lock."""
    try:
        return acquire(folder / LOCK)
    except Busy:
        raise FineSightError(f"Another process is writing to the index {folder}: wait for it to end.") from None


def explain_write_errors(folder: Path) -> AbstractContextManager[None]:
    """Raise errors of the system as ``FineSightError`` that says what to do, as when the disk is full."""
    return explain_os_errors(f"The index {folder} cannot be written", "make room, or give --index another folder")


def file_size(file: Path) -> int:
    """Return the bytes of a file, 0 of a folder or of a journal that its writer has just removed."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
