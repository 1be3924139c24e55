"""Decoded pixels on disk, in shards that all processes share and that are complete or not there.

A shard is a folder with ``pixels.bin`` (raw RGB, image after image) and ``index.npz``. It is written under a
scratch name and renamed when it is complete, so readers never see a part of one. A lock lets one process write;
the others wait and then find what they wanted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import UnreachableFile, explain_os_errors, os_reason
from finesight.data.geometry import Scale, read_resized
from finesight.data.places import is_place, stamp
from finesight.errors import FineSightError, SkipImage
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.io.lock import locked
from finesight.io.parallel import bounded_map
from finesight.io.progress import progress_bar
from finesight.io.table import write_table

SHARD_IMAGES = 4096  # a killed build loses at most this many; each open shard costs one file handle
_ELSEWHERE = "choose another folder with --cache-dir"
_BYTES_MARGIN = 1.5  # pictures are longer than wide: side * side * 3 is the least they need

Job = tuple[bytes, str, int]  # key, file, rows to cut off its bottom
Row = tuple[bytes, int, tuple[int, ...], tuple[int, int], str, int]  # key, offset, size, original, reason, checksum
NO_SUM = -1  # of images that an earlier version decoded


@dataclass(frozen=True)
class _Decoded:
    """The result of one job: pixels, or the reason why there are none."""

    pixels: NDArray[np.uint8]  # empty for a file that is skipped
    original: tuple[int, int]  # width, height
    reason: str = ""
    unreachable: bool = False  # the file may be readable next time: the reason must not be kept


_NOTHING = np.empty((0, 0, 3), np.uint8)


def default_cache_dir() -> Path:
    """Return ``$FINESIGHT_CACHE``, else a folder in the user's cache folder."""
    if own := os.environ.get("FINESIGHT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "finesight"


def write_skipped(skipped: Iterable[tuple[str, str]], path: Path) -> None:
    """Write paths and reasons as ``skipped.csv``. Names that are not UTF-8 keep their bytes."""
    write_table(path, ("path", "reason"), skipped)


@dataclass(frozen=True)
class Entries:
    """The index of all finished shards: one row for each image, sorted by key."""

    shards: list[Path]
    keys: NDArray[np.bytes_]
    shard: NDArray[np.int64]  # index into shards
    offsets: NDArray[np.int64]  # first byte in pixels.bin
    sizes: NDArray[np.int64]  # (n, 2) height, width of the cached image; 0, 0 for a skipped one
    originals: NDArray[np.int64]  # (n, 2) width, height of the file, upright and without the rows cut off
    reasons: NDArray[np.str_]  # why an image was skipped; empty for a good one
    sums: NDArray[np.int64]  # checksum of the pixels, or NO_SUM

    def find(self, keys: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Return the row of each key, -1 where it is not known."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)


def image_key(file: str, scale: Scale, trim: int = 0) -> bytes:
    """Hash path, size, time of the last change, scale and trim of a file, or raise ``UnreachableFile``."""
    size, version = _plain_stamp(file) if not is_place(file) else stamp(file)
    facts = f"\0{size}\0{version}\0{scale}"
    if trim:  # without it, keys are those of caches from before there was one
        facts += f"\0{trim}"
    return hashlib.blake2b(os.fsencode(os.path.abspath(file)) + facts.encode(), digest_size=16).digest()


def _plain_stamp(file: str) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError as error:
        raise UnreachableFile(os_reason(error)) from None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        raise UnreachableFile("not a regular file")
    return status.st_size, status.st_mtime_ns


def read_entries(folder: Path) -> Entries:
    """Read the index of every finished shard. Damaged shards are left out: their images are decoded again."""
    with _explained(folder):
        found = [(shard, index) for shard in _shards(folder) if (index := _read_index(shard)) is not None]
    shards, indices = [shard for shard, _ in found], [index for _, index in found]
    none = _index([])
    joined = {name: np.concatenate([index[name] for index in (none, *indices)]) for name in none}
    shard_of = np.repeat(np.arange(len(shards)), [len(index["keys"]) for index in indices])
    order = np.argsort(joined["keys"], kind="stable")
    rest = {name: values[order] for name, values in joined.items()}
    return Entries(shards=shards, shard=shard_of[order].astype(np.int64), **rest)


def add_images(
    folder: Path,
    jobs: Sequence[Job],
    scale: Scale,
    workers: int | None = None,
    progress: bool = True,
    shard_images: int = SHARD_IMAGES,
    callback: Callable[[int, int], None] | None = None,
) -> dict[bytes, str]:
    """Decode what is still missing into new shards, and return by key why some files could not be reached.

    ``callback`` is told how many images of how many are decoded.
    """
    waiting = "Another process is decoding images into the cache; waiting for it"
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", on_wait=lambda: console.print(waiting) if progress else None):
            remove_scratch(folder)
            for shard in _shards(folder):
                if _read_index(shard) is None:
                    shutil.rmtree(shard, ignore_errors=True)
            known = read_entries(folder).find(np.array([key for key, *_ in jobs], "S16"))
            missing = list({job[0]: job for job, row in zip(jobs, known, strict=True) if row < 0}.values())
            _require_space(folder, len(missing), scale.side)
            return _build(folder, missing, scale, workers, progress, shard_images, callback)


def remove_shard(shard: Path) -> None:
    """Give up a shard whose pixels are damaged: what it held is decoded again when the cache is opened next.

    Processes that have it open keep what they have.
    """
    (shard / "index.npz").unlink(missing_ok=True)


def remove_scratch(folder: Path) -> None:
    """Remove the scratch folders of writers that were killed. To be called under the lock of all writers."""
    for path in folder.iterdir():
        if path.is_dir() and _is_scratch(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_scratch(path: Path) -> bool:
    return path.name.startswith((".", "tmp-"))  # tmp- in caches of earlier versions


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


def _build(
    folder: Path,
    jobs: list[Job],
    scale: Scale,
    workers: int | None,
    progress: bool,
    shard_images: int,
    callback: Callable[[int, int], None] | None,
) -> dict[bytes, str]:
    tell = callback or (lambda done, total: None)
    unreachable: dict[bytes, str] = {}
    with warnings.catch_warnings(), progress_bar(progress and bool(jobs)) as bar:
        warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the skip reasons
        task = bar.add_task("Reading images", total=len(jobs))
        if jobs:
            tell(0, len(jobs))
        for start in range(0, len(jobs), shard_images):
            rows: list[Row] = []
            shard = folder / uuid.uuid4().hex
            with atomic_path(shard) as scratch:
                scratch.mkdir()
                with open(scratch / "pixels.bin", "wb") as file:
                    decoded = bounded_map(lambda job: _decode(job, scale), jobs[start : start + shard_images], workers)
                    for done, ((key, *_), image) in enumerate(decoded, start=start + 1):
                        if image.unreachable:
                            unreachable[key] = image.reason
                        else:
                            pixels = np.ascontiguousarray(image.pixels)
                            size, sum = pixels.shape[:2], zlib.crc32(pixels.data)
                            rows.append((key, file.tell(), size, image.original, image.reason, sum))
                            file.write(pixels.data)
                        bar.update(task, completed=done)
                        tell(done, len(jobs))
                    total = _sync(file)
                with open(scratch / "index.npz", "wb") as file:
                    np.savez(file, total=np.int64(total), **_index(rows))
                    _sync(file)
            if not rows:  # there is nothing to keep
                shutil.rmtree(shard, ignore_errors=True)
    return unreachable


def _decode(job: Job, scale: Scale) -> _Decoded:
    """Read one image, unless its file is no longer the one that the key stands for."""
    key, file, trim = job
    try:
        decoded = _read(file, scale, trim)
        # NumPy drops the zeros at the end of bytes: one key of 256 has some
        if not is_place(file) and image_key(file, scale, trim).rstrip(b"\0") != key.rstrip(b"\0"):
            raise UnreachableFile("it changed while it was read")
    except UnreachableFile as why:
        return _Decoded(_NOTHING, (0, 0), str(why), unreachable=True)
    return decoded


def _read(file: str, scale: Scale, trim: int) -> _Decoded:
    try:
        pixels, geometry = read_resized(file, scale, trim)
    except UnreachableFile:
        raise
    except SkipImage as skip:
        return _Decoded(_NOTHING, (0, 0), str(skip))
    return _Decoded(pixels, geometry.original)


def _index(rows: list[Row]) -> dict[str, Any]:
    keys, offsets, sizes, originals, reasons, sums = zip(*rows, strict=True) if rows else [()] * 6
    return {
        "keys": np.array(keys, "S16"),
        "offsets": np.array(offsets, np.int64),
        "sizes": np.array(sizes, np.int64).reshape(-1, 2),
        "originals": np.array(originals, np.int64).reshape(-1, 2),
        "reasons": np.array(reasons, np.str_),
        "sums": np.array(sums, np.int64),
    }


def _sync(file: IO[bytes]) -> int:
    """Bring a file to the disk before its folder gets its name, and return its length."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


def _shards(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _is_scratch(path))


def _read_index(shard: Path) -> dict[str, Any] | None:
    try:
        with np.load(shard / "index.npz", allow_pickle=False) as file:
            unknown = {"sums": np.full(len(file["keys"]), NO_SUM, np.int64)}
            index = {name: file[name] if name in file.files else unknown[name] for name in _index([])}
            whole = file["total"] == (shard / "pixels.bin").stat().st_size
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return index if whole else None
