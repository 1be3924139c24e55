"""Bring an index up to date with its folder: what is new or changed is embedded, what vanished is dropped, no more."""

from __future__ import annotations

import os
import stat
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from finesight.data.decode import UnreachableFile, os_reason
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError, SkipImage
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import encoder_folder
from finesight.features.preprocess import picture_view
from finesight.features.types import Embedder, Floats, View
from finesight.io.progress import PhaseProgress
from finesight.search.base import Index, IndexMeta, Item, NewItems
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.image_files import UNREADABLE_FOLDER, Found, ids_of, list_files
from finesight.search.open_embedder import require_same

BATCH = 64  # images that are committed together …
SECONDS = 5.0  # … or what is done after so long: as much is lost by a kill
TRIES, PAUSE = 3, 0.05  # to read a file that is being written, seconds between them

PHASES = {"listing": "listing images", "embedding": "embedding", "finishing": "making the search fast"}


@dataclass
class Report:
    """What an update did. Every file that is no item is in ``skipped``, with the reason."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    kept: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False  # was asked to, before all was done

    def __str__(self) -> str:
        words = [f"{self.added:,} added", f"{self.changed:,} changed", f"{self.removed:,} removed"]
        words.append(f"{self.kept:,} as before")
        if self.skipped:
            words.append(f"{len(self.skipped):,} files left out")
        return ", ".join(words)


@dataclass(frozen=True)
class _Plan:
    todo: list[Found]
    gone: list[str]
    kept: int
    skipped: list[tuple[str, str]]


def update_index(
    index: Index,
    embedder: Embedder,
    folder: str | Path | ImageSource,
    *,
    workers: int | None = None,
    callback: PhaseProgress | None = None,
    stop: Callable[[], bool] | None = None,
    skipped_file: Path | None = None,
) -> Report:
    """Safe to kill at any point, and to run again: what was committed is never embedded twice, and nothing is doubled.

    ``stop`` is asked after every image; once it says so, what is done is committed and ``Report.stopped`` is set.
    """
    tell = callback or (lambda phase, done, total: None)
    require_same(index, embedder, "the one given now")
    source = folder if isinstance(folder, ImageSource) else open_source(folder)
    require_root(index, source.root)
    tell("listing", 0, len(source))
    known = index.list_items()
    there = dict(zip(known.paths.tolist(), known.ids.tolist(), strict=True))
    stamps = dict(zip(there, zip(known.bytes.tolist(), known.mtimes.tolist(), strict=True), strict=True))
    plan = _plan(source, stamps)
    report = Report(kept=plan.kept, skipped=plan.skipped)
    if plan.gone:
        index.remove(np.array([there[path] for path in plan.gone], np.int64))
        report.removed = len(plan.gone)
    gone = set(plan.gone)
    ids = ids_of((found.path for found in plan.todo), {path: i for path, i in there.items() if path not in gone})
    _embed(index, embedder, Path(source.root), plan.todo, ids, there, report, workers or _cores(), tell, stop)
    if skipped_file is not None:
        from finesight.data.cache import write_skipped

        write_skipped(sorted(report.skipped), skipped_file)
    if not report.stopped:
        tell("finishing", 0, 1)
        index.finish()
        tell("finishing", 1, 1)
    return report


def require_root(index: Index, root: str | Path) -> None:
    """Paths of items are relative to one folder: with another, all would seem to have vanished."""
    if os.path.realpath(root) != os.path.realpath(index.meta.root):
        raise FineSightError(
            f"The index is of the folder {index.meta.root}, not of {root}: an index belongs to one folder. "
            "Give that folder, or another place for a new index with --index."
        )


def _plan(source: ImageSource, stamps: dict[str, tuple[int, int]]) -> _Plan:
    files, skipped = list_files(source)
    listed = {found.path for found in files}
    hidden = tuple(f"{path}/" for path, reason in skipped if reason.startswith(UNREADABLE_FOLDER))
    todo = [found for found in files if stamps.get(found.path) != (found.bytes, found.mtime_ns)]
    gone = [
        path for path in stamps if path not in listed and not path.startswith(hidden)
    ]  # hidden: perhaps still there
    return _Plan(todo, gone, len(stamps) - len(gone) - sum(found.path in stamps for found in todo), skipped)


def _embed(
    index: Index,
    embedder: Embedder,
    root: Path,
    todo: list[Found],
    ids: dict[str, int],
    before: dict[str, int],
    report: Report,
    workers: int,
    tell: PhaseProgress,
    stop: Callable[[], bool] | None,
) -> None:
    batch = _Batch(index, embedder.spaces, before, report)
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the skip reasons
        tell("embedding", 0, len(todo))
        for done, (found, seen) in enumerate(_seen(pool, root, todo, embedder.resolution, 4 * workers), 1):
            if isinstance(seen, SkipImage):
                batch.skip(found.path, seen)
            else:
                view, stamp = seen
                embedding = embedder.encode([view])[0]
                item = Item(ids[found.path], found.path, *stamp, view.width, view.height, embedding.mask)
                batch.put(item, embedding.features)
            if stop is not None and done < len(todo) and stop():
                report.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                break
            tell("embedding", done, len(todo))
        batch.commit()


class _Batch:
    """Items on their way into the index."""

    def __init__(self, index: Index, spaces: Sequence[str], before: dict[str, int], report: Report) -> None:
        self.index, self.spaces, self.before, self.report = index, spaces, before, report
        self._clear()

    def _clear(self) -> None:
        self.items: list[Item] = []
        self.features: list[dict[str, Floats]] = []
        self.unusable: list[int] = []
        self.since = time.monotonic()

    def put(self, item: Item, features: dict[str, Floats]) -> None:
        self.items.append(item)
        self.features.append(features)
        if len(self.items) >= BATCH or time.monotonic() - self.since >= SECONDS:
            self.commit()

    def skip(self, path: str, reason: SkipImage) -> None:
        """What was an item and is no picture any more is dropped; one that cannot be reached now may come back."""
        self.report.skipped.append((path, str(reason)))
        if path in self.before:
            if isinstance(reason, UnreachableFile):
                self.report.kept += 1
            else:
                self.unusable.append(self.before[path])
                self.report.removed += 1

    def commit(self) -> None:
        if self.unusable:
            self.index.remove(np.array(self.unusable, np.int64))
        if self.items:
            vectors = {space: np.stack([one[space] for one in self.features]) for space in self.spaces}
            self.index.add(NewItems(self.items, vectors))
            changed = sum(item.path in self.before for item in self.items)
            self.report.changed += changed
            self.report.added += len(self.items) - changed
        self._clear()


Seen = tuple[View, tuple[int, int]] | SkipImage


def _seen(
    pool: ThreadPoolExecutor, root: Path, todo: list[Found], resolution: int, ahead: int
) -> Iterator[tuple[Found, Seen]]:
    """Views in order, with a bounded number under way: memory must not grow with the folder."""
    waiting = iter(todo)
    running: deque[tuple[Found, Future[Seen]]] = deque()

    def start(count: int) -> None:
        running.extend(
            (found, pool.submit(read_view, root / found.path, resolution)) for found in islice(waiting, count)
        )

    start(ahead)
    while running:
        found, future = running.popleft()
        seen = future.result()
        start(1)
        yield found, seen


def read_view(file: Path, resolution: int) -> Seen:
    """The view of a file and its size and time when it was read; read again if it changed meanwhile."""
    for _ in range(TRIES):
        try:
            with open(file, "rb", opener=_without_waiting) as stream:
                before = _stamp(stream.fileno())
                seen = _view(stream, resolution)
                if _stamp(stream.fileno()) == before:
                    return seen if isinstance(seen, SkipImage) else (seen, before)
        except SkipImage as skip:
            return skip
        except OSError as error:
            return UnreachableFile(os_reason(error))
        time.sleep(PAUSE)
    return UnreachableFile("it changed while it was read")


def _view(stream: IO[bytes], resolution: int) -> View | SkipImage:
    """Half of a picture is no damaged one if the other half is just being written."""
    try:
        return picture_view(stream, resolution)
    except SkipImage as skip:
        return skip


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise UnreachableFile("not a regular file")
    return status.st_size, status.st_mtime_ns


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- where it is ------------------------------------------------------------------------------------------------------


def open_or_create(where: str | Path, embedder: TorchEmbedder, run: str | Path, root: str | Path) -> Index:
    """The index in ``where``, made if it is not there yet, with a copy of the encoder of ``run``."""
    if index_exists(where):
        return open_index(where)
    home = encoder_folder(run)
    meta = IndexMeta(
        fingerprint=embedder.fingerprint,
        method=embedder.encoder.config.method,
        resolution=embedder.resolution,
        spaces=embedder.spaces,
        dimension=embedder.encoder.channels,
        root=os.path.abspath(root),
        run=os.path.abspath(run),
    )
    return create_index(where, meta, home)
