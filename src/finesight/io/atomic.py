"""Write files and folders so that they are complete or not there at all, whenever the process is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: paths as they are, and two of them change places


@contextmanager
def atomic_path(target: Path, *, sync: bool = False, replace_folder: bool = False) -> Iterator[Path]:
    """Yield a scratch path beside ``target`` that takes its place when the block ends without an error.

    The scratch path does not exist yet: write a file or make a folder there. Its name begins with a dot, holds the
    number of this process and ends in ``.tmp`` and the suffix of the target. It is removed if the block fails.

    Parameters
    ----------
    target
        The file, or the folder that does not exist yet.
    sync
        Whether data must be on the disk before the name is: needed where a power cut must not leave an empty file.
    replace_folder
        Whether the target may be a folder that exists. It is whole until the new one has its name, and then removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp{target.suffix}")
    _remove(scratch)
    try:
        yield scratch
        if sync:
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
        if replace_folder and target.is_dir() and scratch.is_dir():
            _exchange(scratch, target)
        else:
            os.replace(scratch, target)
    finally:
        _remove(scratch)


def write_atomic(target: Path, content: bytes | str, *, sync: bool = False) -> None:
    """Write ``content`` (text as UTF-8) to ``target``: afterwards it holds all of it or what it held before."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    with atomic_path(target, sync=sync) as scratch:
        scratch.write_bytes(data)


def _exchange(scratch: Path, target: Path) -> None:
    """Let two folders change places: in one step where the system can, else the target is away for a moment."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    paths = AT_FDCWD, os.fsencode(scratch), AT_FDCWD, os.fsencode(target)
    if rename is None or rename(*paths, RENAME_EXCHANGE) != 0:
        aside = scratch.with_name(f"{scratch.name}.old")
        os.replace(target, aside)
        os.replace(scratch, target)
        os.replace(aside, scratch)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
