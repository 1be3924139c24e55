"""Open files of an index, and no others; or objects of a bucket and members of tar and Parquet files (data/places.py).

An index knows where its images were when it was built. Something else may lie there now: the server must not hand out
what a link points at that was put there later.
"""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fastapi import HTTPException

from finesight.data.decode import UnreachableFile
from finesight.data.places import is_address, is_place, read_place, split_member, stamp

MOST_BYTES = 128 * 2**20  # of an object, a member, or a row group of a Parquet file, which is held in memory

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


class ImageUnreachable(ImageMissing):
    """The image lies in a store that cannot be reached now, or that does not have it any more."""

    def __init__(self, reason: str) -> None:
        detail = f"The picture cannot be read now: {reason}."
        HTTPException.__init__(self, 503, detail, headers={"Retry-After": "5"})


@dataclass(frozen=True)
class FileStatus:
    """What tells whether an image changed."""

    bytes: int
    mtime_ns: int


def place_status(root: str | Path, path: str) -> FileStatus | None:
    """Return the status of an image that is not a file of its own, or None if it is one. Raises as open_inside."""
    if not is_place(os.path.join(root, path)):
        return None
    if path.startswith("/") or os.pardir in path.split("/"):
        raise ImageOutside
    try:
        return FileStatus(*stamp(os.path.join(root, path)))
    except UnreachableFile as error:
        raise ImageUnreachable(str(error)) from None


def open_inside(root: str | Path, path: str) -> tuple[IO[bytes], FileStatus]:
    """Open the image ``path`` of ``root``. Raise ImageOutside or ImageMissing.

    Of a regular file the real path must lie inside the real root; it is then opened folder by folder without following
    links, so that no link made in between can lead elsewhere. So is a tar or Parquet file; its member is read whole.
    """
    status = place_status(root, path)
    if status is None:
        stream, size, mtime_ns = _open_file(root, path)
        return stream, FileStatus(size, mtime_ns)
    member = split_member(path)
    try:
        if member is None or is_address(root):
            return io.BytesIO(read_place(os.path.join(root, path), most=MOST_BYTES)), status
        with _open_file(root, member[0])[0] as container:
            return io.BytesIO(read_place(os.path.join(root, path), container, MOST_BYTES)), status
    except UnreachableFile as error:
        raise ImageUnreachable(str(error)) from None


def _open_file(root: str | Path, path: str) -> tuple[IO[bytes], int, int]:
    """Open a regular file; return it with its size and time."""
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
    return os.fdopen(descriptor, "rb"), status.st_size, status.st_mtime_ns


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
