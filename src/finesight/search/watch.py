"""Notice new, changed and vanished images of a folder by listing it again and again: on network drives, too."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.search.image_files import OUTSIDE, list_files

INTERVAL = 5.0  # seconds between two listings
SETTLE = 2.0  # seconds that a file must stay as it is before it is read: it may still be copied
REST = 10  # a listing that takes long is followed by a pause of so many times as long
RETRY = 3.0  # seconds until a file that could not be read is read again although it did not change …
RETRIES, GROWTH = 5, 4  # … how often at most, and how many times as long each pause is as the one before

Stamp = tuple[int, int]  # size and time of a file


@dataclass
class FolderWatch:
    """Says what of a folder changed since the last time. Where ``look`` raises ``FineSightError``, try again later."""

    folder: str | Path
    interval: float = INTERVAL
    settle: float = SETTLE
    retry: float = RETRY
    known: dict[str, Stamp] = field(default_factory=dict)  # what was there when the index was updated last
    _seen: dict[str, tuple[Stamp, float]] = field(default_factory=dict)  # and since when it has been as it is now
    _unreadable: dict[str, tuple[Stamp, int, float]] = field(default_factory=dict)  # retries, and when the next is due
    _next: float = 0.0
    _began: bool = False

    def wait(self) -> float:
        """Return the seconds until it is time to look again."""
        return max(0.0, self._next - time.monotonic())

    def look(self) -> Change:
        """List the folder and return what changed; raise ``FineSightError`` if all pictures are links that leave it."""
        start = time.monotonic()
        try:
            source = open_source(self.folder)
            files, skipped = list_files(source)
            if outside := [] if files else [path for path, reason in skipped if reason == OUTSIDE]:
                raise FineSightError(
                    f"No picture of {self.folder} can be searched, the first is {outside[0]}: {OUTSIDE}."
                )
            stamps = {file.path: (file.bytes, file.mtime_ns) for file in files}
        finally:
            now = time.monotonic()
            self._next = now + max(self.interval, REST * (now - start))
        self._seen = {path: (stamp, self._since(path, stamp, now)) for path, stamp in stamps.items()}
        self._began = True
        differing = {path for path, stamp in stamps.items() if self.known.get(path) != stamp}
        unsettled = {path for path in differing if now - self._seen[path][1] < self.settle}
        if unsettled:
            self._next = min(self._next, now + self.settle)
        again = {
            path
            for path, (stamp, retries, due) in self._unreadable.items()
            if retries < RETRIES and due <= now and stamps.get(path) == stamp
        }
        return Change(
            source, stamps, differing - unsettled | again, self.known.keys() - stamps.keys(), unsettled, again
        )

    def _since(self, path: str, stamp: Stamp, now: float) -> float:
        """Return since when a file is as it is. At the first look only its own time can tell."""
        old = self._seen.get(path)
        if old is not None and old[0] == stamp:
            return old[1]
        return now if self._began else min(now, now - (time.time() - stamp[1] / 1e9))

    def take(self, change: Change, unreadable: Iterable[str] = ()) -> None:
        """Remember that the index was updated with a change, but for files that could not be read.

        These are ready again after a while, though nothing of them changed: a network drive may have been away, or a
        program may have given a file its size and time before its content.
        """
        failed, now = set(unreadable), time.monotonic()
        self._unreadable = {path: known for path, known in self._unreadable.items() if path in failed}
        for path in change.ready & failed:
            stamp, retries, _ = self._unreadable.get(path, (None, 0, 0.0))
            retries = retries + 1 if stamp == change.stamps[path] else 0
            self._unreadable[path] = change.stamps[path], retries, now + self.retry * GROWTH**retries
        left = {path: self.known[path] for path in change.unsettled if path in self.known}
        self.known = {path: stamp for path, stamp in change.stamps.items() if path not in change.unsettled} | left


@dataclass(frozen=True)
class Change:
    """What differs between two listings."""

    source: ImageSource
    stamps: dict[str, Stamp]
    ready: set[str]  # new or changed, and as they are for a while; or to be read again
    gone: set[str]
    unsettled: set[str]  # new or changed just now
    again: set[str] = field(default_factory=set)  # of those that are ready: could not be read before

    @property
    def is_retry(self) -> bool:
        """Whether there is nothing but files to be read again."""
        return bool(self.again) and self.ready == self.again and not self.gone

    def __bool__(self) -> bool:
        return bool(self.ready or self.gone)
