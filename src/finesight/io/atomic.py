"""Write files and folders so that they are complete or not there at all, whenever the process is killed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from finesight.errors import FineSightError

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: paths as they are, and two of them change places

SCRATCH = re.compile(
    r"\.(?P<target>.+)\.(?P<writer>\d+)\.tmp(\.[^.]*)?(\.old)?"
)  # names that ``atomic_path`` writes under
PROCESS_DIGITS = 10  # of the number of a process in such a name; those before them are of the machine
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class WriteError(FineSightError, OSError):
    """A file cannot be written: the disk is full, the folder may not be written to, …"""

    def __init__(self, target: Path, error: OSError) -> None:
        OSError.__init__(self, error.errno, error.strerror or str(error), str(target))
        words = error.strerror or str(error)
        reason = words[:1].lower() + words[1:]
        advice = "make room" if error.errno in NO_ROOM else "check its permissions, or choose another place"
        self.sentence = f"{target} cannot be written: {reason}; {advice}."

    def __str__(self) -> str:
        return self.sentence


@contextmanager
def explain_write_errors(target: Path) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a ``WriteError`` that names ``target``."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(target, error) from error


@contextmanager
def atomic_path(target: Path, *, sync: bool = False, replace_folder: bool = False) -> Iterator[Path]:
    """Yield a scratch path beside ``target`` that takes its place when the block ends without an error.

    The scratch path does not exist yet: write a file or make a folder there. Its name begins with a dot, holds a number
    of this machine and process and ends in ``.tmp`` and the suffix of the target. It is removed if the block fails. An
    ``OSError`` of the block becomes a ``WriteError`` that names the target.

    Parameters
    ----------
    target
        The file, or the folder that does not exist yet.
    sync
        Whether data must be on the disk before the name is: needed where a power cut must not leave an empty file.
    replace_folder
        Whether the target may be a folder that exists. It is whole until the new one has its name, and then removed.
    """
    with explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.{_writer()}.tmp{target.suffix}")
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


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder. Raises the ``OSError`` of the first file that fails; ``shutil.copytree`` makes a list of all."""
    target.mkdir()
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            shutil.copy2(path, place)


def require_writable(target: Path, size: float = 0) -> None:
    """Raise ``WriteError`` if the file ``target`` cannot be written, or its disk has no room for ``size`` bytes.

    To be called before long work whose result it is. The target is not touched. What killed processes of this machine
    left of it is removed.
    """
    scratch = target.with_name(f".{target.name}.{_writer()}.tmp")
    with explain_write_errors(target):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        remove_orphans(target)
        try:
            scratch.write_bytes(bytes(512))
        finally:
            scratch.unlink(missing_ok=True)
        if size > (free := shutil.disk_usage(target.absolute().parent).free):
            words = f"it takes about {size / 1e6:,.2f} MB and the disk has {free / 1e6:,.2f} MB free"
            raise OSError(errno.ENOSPC, words)


def remove_scratch(folder: Path, targets: Iterable[str] | None = None) -> None:
    """Remove what killed processes left of these targets in ``folder``, or of all.

    Only who holds the lock of those that write them may call it.
    """
    names = None if targets is None else set(targets)
    for path in folder.iterdir() if folder.is_dir() else ():
        found = SCRATCH.fullmatch(path.name)
        if found and (names is None or found["target"] in names):
            _remove(path)


def _writer() -> str:
    """Return a number of this machine and process: no two that write at a time have the same one."""
    return f"{zlib.crc32(platform.node().encode())}{os.getpid():0{PROCESS_DIGITS}d}"


def remove_orphans(*targets: Path) -> None:
    """Remove scratch files of files in one folder whose process was of this machine and has ended."""
    names = {target.name for target in targets}
    machine = _writer()[:-PROCESS_DIGITS]
    for path in targets[0].absolute().parent.iterdir() if os.name == "posix" else ():
        found = SCRATCH.fullmatch(path.name)
        if found and found["target"] in names and found["writer"][:-PROCESS_DIGITS] == machine:
            try:
                os.kill(int(found["writer"][-PROCESS_DIGITS:]), 0)
            except ProcessLookupError:
                _remove(path)
            except OSError:
                continue  # it is of another user, and runs


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
