"""Open files of an index, and no others.

An index knows where its images were when it was built. Something else may lie there now: the server must not hand out
what a link points at that was put there later.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from fastapi import HTTPException

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not wait for a writer


class ImageMissing(HTTPException):
    """The image was there when the index was built, and is not there now."""

    def __init__(self) -> None:
        super().__init__(404, "The picture is no longer where it was when the index was built.")


class ImageOutside(HTTPException):
    """The path of the image leads out of the folder of the index."""

    def __init__(self) -> None:
        super().__init__(403, "The picture lies outside the folder of the index, so it is not shown.")


def open_inside(root: str | Path, path: str) -> tuple[IO[bytes], os.stat_result]:
    """Open the regular file ``path`` of ``root``. Raise ImageOutside or ImageMissing.

    The real path must lie inside the real root; it is then opened folder by folder without following links, so that
    no link made in between can lead elsewhere.
    """
    top = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(top, path), strict=True)
        parts = os.path.relpath(real, top).split(os.sep)
        if parts[0] in (os.curdir, os.pardir):
            raise ImageOutside
        descriptor = _open_without_links(top, parts)
    except (OSError, ValueError):
        raise ImageMissing from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ImageMissing
    return os.fdopen(descriptor, "rb"), status


def _open_without_links(top: str, parts: list[str]) -> int:
    folder = os.open(top, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
