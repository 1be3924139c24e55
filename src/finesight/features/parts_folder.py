"""Features in Parquet parts: written as they come, each image once by its content key, and continued if stopped.

Where the machines of a cluster see the folder, they write the parts, and this process gives each its name: that is when
a part counts. Else all features come to this process.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource
from finesight.data.store import image_key, write_skipped
from finesight.errors import FineSightError, SkipImage
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.features.on_ray import Embedded, PartsPlan, all_see, embed_on_ray, parts_on_ray
from finesight.features.part_files import part_name, printable, write_part
from finesight.features.ray_cluster import connected
from finesight.features.types import Floats
from finesight.features.writing import write_features
from finesight.io.lock import Busy, acquire

NOTE = "made-by.txt"
PENDING = ".pending-"  # of folders with parts that do not count yet
PART = 1024  # images of a part …
PART_SECONDS = 60.0  # … or what came in so long after its first one: a kill loses no more


def embed_on_cluster(
    cluster: str,
    run: Path,
    encoder: Encoder,
    source: ImageSource,
    out: Path,
    *,
    pooling: str | None = None,
    part_images: int = PART,
    progress: bool = True,
) -> tuple[int, int]:
    """Write the feature of each readable image, embedded by a Ray cluster; return how many, and how many were skipped.

    ``out`` is a file as for ``embed_images``, or a folder (a name without suffix), which keeps the parts. The same
    call continues what was stopped; ``part_images`` is how many a kill may lose.
    """
    if source.trim:
        raise FineSightError("Images whose last rows are cut off (FGVC-Aircraft) cannot be embedded by --cluster.")
    name = pooling or encoder.config.pooling
    parts = Parts(out if not out.suffix else out.with_name(f"{out.name}.parts"), f"{fingerprint(run)} {name}")
    framing = encoder.config.framing
    keys, skipped = np.zeros(len(source), "S16"), list(source.skipped)
    for i in range(len(source)):
        try:
            keys[i] = image_key(str(source.file(i)), framing.scale)
        except SkipImage as skip:
            skipped.append((str(source.paths[i]), str(skip)))
    with parts.alone():
        todo = [i for i in parts.missing(keys).tolist() if keys[i]]
        if todo:
            files, paths = [str(source.file(i)) for i in todo], source.paths[todo]
            how: dict[str, Any] = {"exact": encoder.exact, "progress": progress}
            with connected(cluster) as ray, parts.pending() as pending:
                if all_see(ray, files, pending):
                    plan = PartsPlan(pending, part_images, keys[todo].tolist(), list(map(printable, paths)))
                    made = parts_on_ray(ray, run, files, framing, name, plan, parts.taker(pending), **how)
                    skipped += [(str(paths[number]), reason) for number, reason in made if reason]
                else:
                    rows = embed_on_ray(ray, run, files, framing, (name,), **how)
                    skipped += parts.write(rows, name, keys[todo], paths, part_images)
        written = len(parts.known())
        if out.suffix:
            parts.assemble(keys, source.paths, out)
    if skipped:
        write_skipped(skipped, out.with_name(f"{out.stem}.skipped.csv"))
    return written, len(skipped)


class Parts:
    """A folder of ``part-….parquet`` with the columns key, path and feature."""

    def __init__(self, folder: Path, made_by: str) -> None:
        """``made_by`` names encoder and pooling: parts of another one are refused."""
        self.folder, note = folder, folder / NOTE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not note.exists():
                if any(folder.iterdir()):
                    raise FineSightError(f"{folder} is not empty and holds no features: give -o a new folder.")
                note.write_text(made_by)
            if note.read_text() != made_by:
                raise FineSightError(f"{folder} holds features of another encoder or pooling: give -o a new name.")
        except OSError as error:
            raise FineSightError(f"{folder} cannot be written to: {error.strerror}.") from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other command write here meanwhile: it would embed the same images."""
        handle: AbstractContextManager[Any]
        try:
            handle = acquire(self.folder / NOTE)
        except Busy:
            raise FineSightError(f"Another process is writing to {self.folder}.") from None
        except OSError:
            handle = nullcontext()  # a disk without locks
        with handle:
            yield

    @contextmanager
    def pending(self) -> Iterator[Path]:
        """Make a folder for parts that do not count yet, and remove it afterwards; and those of killed commands."""
        for left in self.folder.glob(f"{PENDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        folder = self.folder.absolute() / f"{PENDING}{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def taker(self, pending: Path) -> Callable[[str], bool]:
        """Return what moves a part from there to the parts that count, in one step; False if it is not there."""

        def take(name: str) -> bool:
            try:
                os.rename(pending / name, self.folder / name)
            except FileNotFoundError:
                return False
            return True

        return take

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def known(self) -> NDArray[np.bytes_]:
        """Return the keys of all images that are written."""
        import pyarrow.parquet as pq

        keys = [pq.read_table(file, columns=["key"]).column(0).to_pylist() for file in self._files()]
        return np.array([key for part in keys for key in part], "S16")

    def missing(self, keys: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Return which of the images are not written yet; of several with one key, the first."""
        first = np.unique(keys, return_index=True)[1]
        return np.sort(first[~np.isin(keys[first], self.known())])

    def write(
        self,
        rows: Iterator[Embedded],
        pooling: str,
        keys: NDArray[np.bytes_],
        paths: NDArray[np.str_],
        part_images: int = PART,
    ) -> list[tuple[str, str]]:
        """Write what comes, some at a time, and return path and reason of what could not be embedded."""
        skipped: list[tuple[str, str]] = []
        waiting: list[tuple[bytes, str, Floats]] = []
        since = 0.0
        try:
            for row in rows:
                if row.reason:
                    skipped.append((str(paths[row.number]), row.reason))
                    continue
                since = since if waiting else time.monotonic()
                waiting.append((keys[row.number], str(paths[row.number]), row.features[pooling]))
                if len(waiting) >= part_images or time.monotonic() - since >= PART_SECONDS:
                    self._write(waiting)
                    waiting = []
        finally:  # also if the cluster is lost, or the user stops it
            if waiting:
                self._write(waiting)
        return skipped

    def _write(self, rows: list[tuple[bytes, str, Floats]]) -> None:
        keys, paths, features = zip(*rows, strict=True)
        write_part(self.folder / part_name(keys), keys, list(map(printable, paths)), np.stack(features))

    def assemble(self, keys: NDArray[np.bytes_], paths: NDArray[np.str_], out: Path) -> None:
        """Write all features as one file in the order of the listing, and remove the parts."""
        there, features = self.read(keys)
        write_features(paths[there], features, out)
        shutil.rmtree(self.folder)

    def read(self, keys: NDArray[np.bytes_]) -> tuple[NDArray[np.bool_], Floats]:
        """Return which of the images are written, and the features of these in the order given. -> (n,), (m, D)"""
        import pyarrow.parquet as pq

        tables = [pq.read_table(file, columns=["key", "feature"]) for file in self._files()]
        if not tables:
            raise FineSightError("None of the images could be embedded.")
        known = np.concatenate([np.array(table.column(0).to_pylist(), "S16") for table in tables])
        rows = [table.column(1).combine_chunks().flatten().to_numpy() for table in tables]
        features = np.concatenate([row.reshape(table.num_rows, -1) for row, table in zip(rows, tables, strict=True)])
        order = np.argsort(known)
        places = np.minimum(np.searchsorted(known[order], keys), len(known) - 1)
        there: NDArray[np.bool_] = known[order][places] == keys
        return there, features[order[places[there]]]
