"""Small pictures kept on disk: made once for each content of a file. The folder may be deleted at any time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from finesight.server.safe_files import Stamp

MOST_BYTES = 512 * 2**20
KEPT = 0.8  # of that, after the oldest have gone
LOOK_EVERY = 500  # new pictures between two looks at how much there is


class Thumbs:
    """A folder of JPEGs, named by what they were made of. A disk that is full or read-only costs speed, no more."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        self._new, self._lock = 0, threading.Lock()

    @staticmethod
    def key(file: str, stamp: Stamp, side: int) -> str:
        """Another one as soon as the file changes."""
        words = f"{stamp.bytes}\0{stamp.mtime_ns}\0{side}\0".encode() + os.fsencode(file)
        return hashlib.sha256(words).hexdigest()[:40]

    def get(self, key: str) -> bytes | None:
        try:
            return self._file(key).read_bytes() or None
        except OSError:
            return None

    def put(self, key: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            file = self._file(key)
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(dir=file.parent, prefix=".")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                os.replace(scratch, file)
            except OSError:
                os.unlink(scratch)
                raise
        with self._lock:
            self._new += 1
            due = self._new % LOOK_EVERY == 0
        if due:
            self.prune()

    def prune(self) -> None:
        """Drop the oldest when there is too much."""
        found = []
        for file in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_size, file))
        total = sum(size for _, size, _ in found)
        if total <= self._most:
            return
        for _, size, file in sorted(found, key=lambda entry: entry[0]):
            with contextlib.suppress(OSError):
                file.unlink()
                total -= size
            if total <= KEPT * self._most:
                return

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.jpg"
