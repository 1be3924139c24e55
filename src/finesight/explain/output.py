"""Names and bytes of the files an explanation leaves."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic

LONGEST = 100  # bytes of a name: what is added to it must fit in a file system's 255


class Names:
    """File names that any system takes, made of any names; never the same twice, whatever the system thinks of case."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def safe(self, name: str) -> str:
        """Letters and digits of any script, dots, dashes and underscores stay."""
        plain = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
        kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in plain).strip("._-") or "image"
        kept = kept.encode()[:LONGEST].decode("utf-8", "ignore")
        free, number = kept, 1
        while free.casefold() in self.taken:
            number += 1
            free = f"{kept}-{number}"
        self.taken.add(free.casefold())
        return free


def make_folder(folder: Path) -> None:
    """Before the work, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FineSightError(f"--out {folder} cannot be made a folder: {error.strerror}.") from error


def write_png(path: Path, picture: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    write(path, buffer.getvalue())


def write(path: Path, data: bytes) -> None:
    """In one move: whoever looks, or a run that is killed, never sees half a file."""
    make_folder(path.parent)
    try:
        write_atomic(path, data)
    except OSError as error:
        raise FineSightError(f"{path} cannot be written: {error.strerror}. Free space, or give another -o.") from error
