"""Files of an index, and no others.

An index says where its pictures were when it was built. What lies there now may be another thing: a link put there
later must not make the server hand out what it points at.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fastapi import HTTPException

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not make us wait


class Vanished(HTTPException):
    """Was there when the index was built."""

    def __init__(self) -> None:
        super().__init__(404, "The picture is no longer where it was when the index was built.")


class Outside(HTTPException):
    def __init__(self) -> None:
        super().__init__(403, "The picture lies outside the folder of the index, so it is not shown.")


@dataclass(frozen=True)
class Stamp:
    """What tells one content of a file from the next."""

    bytes: int
    mtime_ns: int


def open_inside(root: str | Path, path: str) -> tuple[IO[bytes], Stamp]:
    """The regular file ``path`` of ``root``, opened.

    The true path must lie inside the true root; it is then walked folder by folder without following links, so that
    no link made in between can lead elsewhere.
    """
    top = os.path.realpath(root)
    try:
        true = os.path.realpath(os.path.join(top, path), strict=True)
        inside = os.path.relpath(true, top)
        if inside == os.curdir or inside.split(os.sep)[0] == os.pardir:
            raise Outside
        descriptor = _walk(top, inside.split(os.sep))
    except (OSError, ValueError):
        raise Vanished from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise Vanished
    return os.fdopen(descriptor, "rb"), Stamp(status.st_size, status.st_mtime_ns)


def _walk(top: str, parts: list[str]) -> int:
    folder = os.open(top, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
