"""Read an image file of an index's folder as a view, also while another program writes it."""

from __future__ import annotations

import io
import os
import stat
import time
from pathlib import Path

from finesight.data.decode import UnreachableFile, os_reason
from finesight.data.geometry import Framing
from finesight.data.places import is_place, read_place
from finesight.data.places import stamp as place_stamp
from finesight.errors import SkipImage
from finesight.features.preprocess import picture_view
from finesight.features.types import View

READ_TRIES, PAUSE = 3, 0.05  # to read a file that is being written, and seconds between them


def read_view(file: Path, framing: Framing) -> tuple[View, tuple[int, int]] | SkipImage:
    """Return the view of a file with its size and time, or why it cannot be used.

    A file that changes while it is read is read again: half of a picture is not damaged if the other half is just being
    written.
    """
    if is_place(file):
        try:
            return picture_view(io.BytesIO(read_place(file)), framing), place_stamp(file)
        except SkipImage as skip:
            return skip
    for _ in range(READ_TRIES):
        try:
            with open(file, "rb", opener=_open_nonblocking) as stream:
                before = _stamp(stream.fileno())
                result: tuple[View, tuple[int, int]] | SkipImage
                try:
                    result = picture_view(stream, framing), before
                except SkipImage as skip:
                    result = skip
                if _stamp(stream.fileno()) == before:
                    return result
        except SkipImage as skip:
            return skip
        except OSError as error:
            return UnreachableFile(os_reason(error))
        time.sleep(PAUSE)
    return UnreachableFile("it changed while it was read")


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting: a pipe would block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise UnreachableFile("not a regular file")
    return status.st_size, status.st_mtime_ns
