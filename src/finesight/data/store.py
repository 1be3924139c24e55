"""Decoded pixels on disk: shards that appear whole or not at all, found by a key, shared by all processes.

A shard is a folder with ``pixels.bin`` (raw RGB, image after image) and ``index.npz``. It is written under a
temporary name and renamed when complete, so whatever kills the writer, readers see only finished shards. One
lock per store lets a single process write; the others wait and then find what they wanted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import uuid
import warnings
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from finesight.data.decode import UnreachableFile, explain_os_errors, os_reason
from finesight.data.geometry import read_resized
from finesight.errors import FineSightError, SkipImage

SHARD_IMAGES = 4096  # a killed build loses at most this many; each open shard costs one file handle
_TEMPORARY = "tmp-"
_ELSEWHERE = "choose another folder with --cache-dir"
_BYTES_MARGIN = 1.5  # pictures are longer than wide: side * side * 3 is the least they need

Job = tuple[bytes, str, int]  # key, file, rows to cut off its bottom
Row = tuple[bytes, int, tuple[int, ...], tuple[int, int], str]  # key, offset, size, original, reason
Decoded = tuple[NDArray[np.uint8] | None, tuple[int, int], str, bool]  # pixels, (width, height), reason, remember


def default_cache_dir() -> Path:
    """``$FINESIGHT_CACHE``, else the user's cache folder."""
    if own := os.environ.get("FINESIGHT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "finesight"


@dataclass(frozen=True)
class Entries:
    """Every image the finished shards of a store know, one row each, sorted by key."""

    shards: list[Path]
    keys: NDArray[np.bytes_]
    shard: NDArray[np.int64]  # index into shards
    offsets: NDArray[np.int64]  # first byte in pixels.bin
    sizes: NDArray[np.int64]  # (n, 2) height, width of the cached image; 0, 0 for a skipped one
    originals: NDArray[np.int64]  # (n, 2) width, height of the file, upright and without the rows cut off
    reasons: NDArray[np.str_]  # why an image was skipped; empty for a good one

    def find(self, keys: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """The row of each key, -1 where it is not known."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)


def image_key(file: str, side: int, trim: int = 0) -> bytes:
    """Changes with the path, size, time of the last change, wanted side and trim; the content is never read."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise UnreachableFile(os_reason(error)) from None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        raise UnreachableFile("not a regular file")
    facts = f"\0{status.st_size}\0{status.st_mtime_ns}\0{side}"
    if trim:  # without it, keys are those of caches from before there was one
        facts += f"\0{trim}"
    return hashlib.blake2b(os.fsencode(os.path.abspath(file)) + facts.encode(), digest_size=16).digest()


def read_entries(folder: Path) -> Entries:
    """Damaged shards count as absent: their images are decoded again."""
    with _explained(folder):
        found = [(shard, index) for shard in _finished(folder) if (index := _read_index(shard)) is not None]
    shards, indices = [shard for shard, _ in found], [index for _, index in found]
    none = _index([])
    joined = {name: np.concatenate([index[name] for index in (none, *indices)]) for name in none}
    shard_of = np.repeat(np.arange(len(shards)), [len(index["keys"]) for index in indices])
    order = np.argsort(joined["keys"], kind="stable")
    rest = {name: values[order] for name, values in joined.items()}
    return Entries(shards=shards, shard=shard_of[order].astype(np.int64), **rest)


def add_images(folder: Path, jobs: Sequence[Job], side: int, workers: int, progress: bool) -> dict[bytes, str]:
    """Decode what is still missing into new shards; returns why some files could not be reached, by key."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, "decoding images into the cache", progress):
            _clean(folder)
            known = read_entries(folder).find(np.array([key for key, *_ in jobs], "S16"))
            missing = list({job[0]: job for job, row in zip(jobs, known, strict=True) if row < 0}.values())
            _require_space(folder, len(missing), side)
            return _build(folder, missing, side, workers, progress)


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explain_os_errors(f"the decoded cache {folder} cannot be used", _ELSEWHERE)


def _require_space(folder: Path, images: int, side: int) -> None:
    need, free = images * side * side * 3 * _BYTES_MARGIN, shutil.disk_usage(folder).free
    if need > free:
        raise FineSightError(
            f"decoding {images:,} images needs about {_bytes(need)} but the disk of {folder} has "
            f"{_bytes(free)} free; make room or {_ELSEWHERE}"
        )


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _build(folder: Path, jobs: list[Job], side: int, workers: int, progress: bool) -> dict[bytes, str]:
    unreachable: dict[bytes, str] = {}
    columns = ("Decoding images", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not progress or not jobs)
    with warnings.catch_warnings(), bar, ThreadPoolExecutor(workers) as pool:
        warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the skip reasons
        task = bar.add_task("", total=len(jobs))
        for start in range(0, len(jobs), SHARD_IMAGES):
            batch = jobs[start : start + SHARD_IMAGES]
            with _new_shard(folder) as shard:
                for key, reason in _write_shard(shard, batch, _decoded(pool, batch, side, 4 * workers)):
                    if reason:
                        unreachable[key] = reason
                    bar.advance(task)
    return unreachable


def _decoded(pool: ThreadPoolExecutor, jobs: list[Job], side: int, ahead: int) -> Iterator[Decoded]:
    """Results in order, with a bounded number under way: memory must not grow with the folder."""
    waiting = iter(jobs)
    running: deque[Future[Decoded]] = deque(pool.submit(_decode, job, side) for job in islice(waiting, ahead))
    while running:
        done = running.popleft().result()
        running.extend(pool.submit(_decode, job, side) for job in islice(waiting, 1))
        yield done


def _decode(job: Job, side: int) -> Decoded:
    _, file, trim = job
    try:
        pixels, geometry = read_resized(file, side, trim)
    except SkipImage as skip:
        return None, (0, 0), str(skip), not isinstance(skip, UnreachableFile)
    return pixels, geometry.original, "", True


def _write_shard(shard: Path, jobs: list[Job], results: Iterator[Decoded]) -> Iterator[tuple[bytes, str]]:
    """Write one shard; yields each key with the reason if its file could not be reached."""
    rows: list[Row] = []
    with open(shard / "pixels.bin", "wb") as file:
        for (key, *_), (pixels, original, reason, remember) in zip(jobs, results, strict=True):
            if remember:
                size = (0, 0) if pixels is None else pixels.shape[:2]
                rows.append((key, file.tell(), size, original, reason))
            if pixels is not None:
                file.write(np.ascontiguousarray(pixels).data)
            yield key, "" if remember else reason
        total = file.tell()
        _sync(file)
    if rows:
        with open(shard / "index.npz", "wb") as file:
            np.savez(file, total=np.int64(total), **_index(rows))
            _sync(file)


def _index(rows: list[Row]) -> dict[str, Any]:
    keys, offsets, sizes, originals, reasons = zip(*rows, strict=True) if rows else [()] * 5
    return {
        "keys": np.array(keys, "S16"),
        "offsets": np.array(offsets, np.int64),
        "sizes": np.array(sizes, np.int64).reshape(-1, 2),
        "originals": np.array(originals, np.int64).reshape(-1, 2),
        "reasons": np.array(reasons, np.str_),
    }


def _sync(file: IO[bytes]) -> None:
    """Before the rename: after a power cut a finished name must not stand for unwritten data."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _new_shard(folder: Path) -> Iterator[Path]:
    """A folder to fill; it becomes a shard at the end, unless nothing was worth remembering (no index)."""
    name = uuid.uuid4().hex
    temporary = folder / f"{_TEMPORARY}{name}"
    temporary.mkdir()
    try:
        yield temporary
        if (temporary / "index.npz").exists():
            os.rename(temporary, folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _finished(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(_TEMPORARY))


def _read_index(shard: Path) -> dict[str, Any] | None:
    try:
        with np.load(shard / "index.npz", allow_pickle=False) as file:
            index = {name: file[name] for name in _index([])}
            whole = file["total"] == (shard / "pixels.bin").stat().st_size
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return index if whole else None


def _clean(folder: Path) -> None:
    """Under the lock: a temporary folder has no living owner then, and a damaged shard is of no use."""
    for path in folder.iterdir():
        if path.is_dir() and (path.name.startswith(_TEMPORARY) or _read_index(path) is None):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(folder: Path, doing: str, progress: bool) -> Iterator[None]:
    """One process at a time is ``doing`` it. The kernel lets go of the lock when its owner dies, however it dies."""
    with open(folder / "lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                Console(stderr=True).print(f"Another process is {doing}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
