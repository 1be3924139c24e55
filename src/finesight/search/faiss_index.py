"""An index in a folder: vectors in memory-mapped files, items in SQLite, FAISS where exact search is slow.

    index.json     how it was made            items.db         items, and which row of the vectors is whose
    encoder/       the encoder that made it   vectors-G/       a file of rows for each space, generation G
    model.onnx     its exported file, which may be all there is of it
    skipped.csv    files that were left out   *.faiss          structures over the rows
    notes.db       what people wrote about the images (finesight.search.notes); in a run it is in the run's folder

One process writes at a time; any number read meanwhile, each search on one consistent state.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Self

import numpy as np

from finesight.data.decode import explain_os_errors
from finesight.errors import FineSightError
from finesight.features.encoder_folder import is_model_file
from finesight.features.types import Floats
from finesight.io.atomic import atomic_path, copy_folder, write_atomic
from finesight.io.console import console, format_count
from finesight.io.lock import Busy, acquire
from finesight.search import structures
from finesight.search.base import MODEL, Ids, Index, IndexItem, IndexMeta, ItemList, NewItems
from finesight.search.checksums import CHECKED_BYTES, damaged_rows, row_sums
from finesight.search.item_store import ANEW, Changes, ItemStore, State
from finesight.search.notes import NOTES
from finesight.search.snapshot import Snapshot
from finesight.search.structures import FaissLimits, fit_structure

META, ITEMS, ENCODER, LOCK = "index.json", "items.db", "encoder", "lock"
RUN_INDEX = "index"  # folder of a run that its index is in
FROZEN_INDEX = "frozen/index"  # folder of a run that has the index of the network before training
MAX_DEAD_SHARE = 0.2  # of rows that no item owns; above it the vector files are written anew


class FaissIndex(Index):
    """Open the index in ``folder``; raise ``FineSightError`` if there is none or it is damaged or of another format."""

    def __init__(self, folder: str | Path, limits: FaissLimits | None = None) -> None:
        self.folder = Path(folder)
        self.limits = limits or FaissLimits()
        try:
            text = (self.folder / META).read_text()
        except FileNotFoundError:
            raise FineSightError(f"There is no index in {self.folder}. Make one with `finesight index`.") from None
        except (OSError, ValueError) as error:
            raise FineSightError(f"The index in {self.folder} is damaged or cannot be read: {error}") from error
        self.meta = IndexMeta.parse(text, f"The index in {self.folder}")
        self._store = ItemStore(self.folder / ITEMS)
        self._refreshing = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._lock: IO[bytes] | None = None
        self._check_all = False  # however large the files are

    @classmethod
    def open(cls, where: str | Path) -> Self:
        """Open the index in the folder ``where``, or the one of the run ``where``; raise ``FineSightError`` if none.

        Of a run that has one before training and one after it, it is that of the encoder that was kept.
        """
        folder = Path(where).expanduser()
        in_run = [folder / RUN_INDEX, folder / FROZEN_INDEX]
        if _keeps_frozen(folder):
            in_run.reverse()
        for candidate in (folder, *in_run):
            if cls.exists(candidate):
                return cls(candidate)
        if not folder.exists():
            raise FineSightError(f"There is no index {folder}: nothing is there. Make one with `finesight index`.")
        if (folder / "encoder").exists() or (folder / "config.yaml").exists():
            raise FineSightError(f"The run {folder} has no index yet. Make one with `finesight index {folder} FOLDER`.")
        advice = f"Make one with `finesight index RUN FOLDER --index {folder}`."
        raise FineSightError(f"There is no index in {folder}. {advice}")

    @classmethod
    def exists(cls, where: str | Path) -> bool:
        return (Path(where).expanduser() / META).exists()

    @classmethod
    def create(cls, where: str | Path, meta: IndexMeta, encoder: Path) -> Self:
        """Make an empty index with a copy of its encoder. ``index.json`` comes last: it makes the folder an index."""
        folder = Path(where).expanduser()
        _refuse_foreign(folder)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with _lock_folder(folder):
                if (folder / META).exists():
                    raise FineSightError(f"There is an index in {folder} already.")
                for stale in (folder / ENCODER, *folder.glob(f".{ENCODER}.*")):  # of a process that was killed
                    shutil.rmtree(stale, ignore_errors=True)
                for stale in folder.glob(f".{MODEL}.*"):
                    stale.unlink()
                is_file = is_model_file(encoder)
                with atomic_path(folder / (MODEL if is_file else ENCODER)) as scratch:
                    (shutil.copyfile if is_file else copy_folder)(encoder, scratch)
                (folder / ITEMS).unlink(missing_ok=True)
                ItemStore(folder / ITEMS, create=True).close()
                write_atomic(folder / META, meta.model_dump_json(indent=2) + "\n", sync=True)
        return cls(folder)

    # --- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.snapshot().count

    def list_items(self) -> ItemList:
        return self._store.list_items()

    def items(self, ids: Sequence[int]) -> list[IndexItem | None]:
        return self._store.items(ids)

    def vectors(self, ids: Ids, space: str) -> Floats:
        now = self.snapshot()
        wanted = np.asarray(ids, np.int64).reshape(-1)
        rows = now.rows_of(wanted)
        if (rows < 0).any():
            raise FineSightError(f"The index has no item {wanted[rows < 0][0]}.")
        chosen: Floats = np.array(now.vectors[self.check_space(space)][rows], np.float32)
        return chosen

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        now = self.snapshot()
        vectors = now.vectors[self.check_space(space)]
        for start in range(0, now.state.rows, rows):
            live = now.live[start : start + rows]
            if live.any():
                yield now.ids[start : start + rows][live], np.asarray(vectors[start : start + rows])[live]

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        queries = np.ascontiguousarray(np.atleast_2d(queries), np.float32)
        return self.snapshot().search(queries, k, self.check_space(space))

    def facts(self) -> dict[str, object]:
        now = self.snapshot()
        spaces = {space: now.facts(space) for space in self.meta.spaces}
        return {
            "store": "faiss",
            "items": now.count,
            **spaces[self.meta.spaces[0]],
            "spaces": spaces,
            "bytes": sum(map(_file_size, self.folder.glob("**/*"))),
        }

    def encoder_folder(self) -> Path:
        return self.folder / ENCODER

    def model_file(self) -> Path:
        return self.folder / MODEL

    def skipped_file(self, run: Path) -> Path:
        return self.folder / "skipped.csv"

    def reopened(self) -> Self | None:
        if not self._store.is_replaced or not self.exists(self.folder):
            return None
        return type(self)(self.folder, self.limits)

    def notes_file(self) -> Path:
        """Return a file of the run if the index is in one, because a run replaces its indexes; else of the folder."""
        own = self.folder.resolve()
        for place in (FROZEN_INDEX, RUN_INDEX):
            run = own.parents[place.count("/")]
            if own == run / place and any((run / name).exists() for name in (ENCODER, "config.yaml", "frozen")):
                return run / NOTES
        return own / NOTES

    def close(self) -> None:
        self._store.close()
        self._release()

    def snapshot(self) -> Snapshot:
        """Return the state that was committed last. It stays as it is while others write.

        Files may be replaced between being named and being opened; then they are named again.
        """
        for _ in range(10):
            held, state = self._snapshot, self._store.state()
            if held is not None and held.state == state:
                return held
            with self._refreshing:
                try:
                    self._snapshot = self._refresh(self._snapshot)
                except FileNotFoundError:
                    continue
                return self._snapshot
        raise FineSightError(f"The index in {self.folder} is damaged: files of it are missing. {ANEW}")

    def _refresh(self, held: Snapshot | None) -> Snapshot:
        """Return the latest snapshot; rows and structures that ``held`` has are taken from it."""
        changes = self._store.changes(held.state if held else None, held.last_dead if held else 0)
        vectors = {space: self._map_rows(changes.state, space) for space in self.meta.spaces}  # first
        ids = np.full(changes.state.rows, -1, np.int64)
        if held is not None and held.state.generation == changes.state.generation:
            ids[: len(held.ids)] = held.ids
        ids[changes.dead] = -1
        ids[changes.rows] = changes.ids
        known = held.loaded if held is not None else {}
        loaded = {
            one.file: known[one.file] if one.file in known else structures.read(self.folder, one)
            for one in changes.structures.values()
            if one.file
        }
        damaged = self._take_out_damaged(held, changes, ids, vectors)
        return Snapshot(changes.state, changes.last_dead, ids, vectors, changes.structures, loaded, damaged)

    def _take_out_damaged(self, held: Snapshot | None, changes: Changes, ids: Ids, vectors: dict[str, Floats]) -> Ids:
        """Set the ids of damaged rows to -1, so that no search uses them; return whose they are.

        All rows are checked when files are read for the first time, unless they are large.
        """
        if held is not None and held.state.generation == changes.state.generation:
            return held.damaged[~np.isin(held.damaged, changes.ids)]
        if not self._check_all and sum(one.nbytes for one in vectors.values()) > CHECKED_BYTES:
            return np.zeros(0, np.int64)
        rows = damaged_rows(list(vectors.values()), ids >= 0, *self._store.checksums())
        if self._check_all:
            rows = np.union1d(rows, self._store.damaged_rows())
        damaged = ids[rows]
        ids[rows] = -1
        if len(damaged):
            count = f"{format_count(len(damaged), 'image')} of {len(ids):,}"
            console.print(
                f"Damaged and left out: {count} in the index {self.folder}. "
                "`finesight index` with the same run and folder embeds them again.",
                markup=False,
            )
        return damaged

    def find_damaged(self, *, everything: bool = False) -> Ids:
        if everything and not self._check_all:
            with self._refreshing:
                self._check_all, self._snapshot = True, None
        return self.snapshot().damaged

    def _map_rows(self, state: State, space: str) -> Floats:
        """Map the rows of a space, (rows, D): they are never in memory as a whole."""
        if not state.rows:
            return np.zeros((0, self.meta.width(space)), np.float32)
        file = self._rows_file(state.generation, space)
        self._require_rows(file, state, space)
        return np.memmap(file, np.float32, "r", shape=(state.rows, self.meta.width(space)))

    def _require_rows(self, file: Path, state: State, space: str) -> None:
        if file.stat().st_size < state.rows * self._row_bytes(space):
            raise FineSightError(f"The index in {self.folder} is damaged: {file.name} is too short. {ANEW}")

    def _rows_file(self, generation: int, space: str) -> Path:
        return self.folder / f"vectors-{generation}" / f"{space}.f32"

    def _row_bytes(self, space: str) -> int:
        return 4 * self.meta.width(space)

    # --- writing --------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        with _writing(self.folder):
            self._acquire()
        try:
            yield
        finally:
            self._release()

    def add(self, batch: NewItems) -> None:
        items = self.check_batch(batch)
        if not items:
            return
        with _writing(self.folder):
            self._acquire()
            state = self._store.state()
            for space in self.meta.spaces:
                with open(self._rows_file(state.generation, space), "r+b") as file:
                    file.seek(state.rows * self._row_bytes(space))
                    file.write(np.ascontiguousarray(batch.vectors[space], np.float32).data)
                    _sync(file)
        self._store.add(items, row_sums([batch.vectors[space] for space in self.meta.spaces]))

    def remove(self, ids: Ids) -> None:
        with _writing(self.folder):
            self._acquire()
        self._store.remove(np.asarray(ids, np.int64))

    def finish(self) -> None:
        """Build the structures that are needed, and let other processes write from then on."""
        with _writing(self.folder):
            self._acquire()
            now = self.snapshot()
            if len(now.damaged):  # their images are gone too, or cannot be read now
                self._store.remove(now.damaged)
                now = self.snapshot()
            if now.state.rows - now.count > MAX_DEAD_SHARE * now.state.rows:
                self._compact(now)
                now = self.snapshot()
            built = [fit_structure(now, space, self.folder, self.limits) for space in self.meta.spaces]
            if built != [now.structures.get(space) for space in self.meta.spaces]:
                self._store.set_structures(built)
            self._remove_stale()
            self._release()

    def _compact(self, now: Snapshot) -> None:
        """Copy the rows that have an owner to files of the next generation, and commit to those."""
        kept, generation = np.flatnonzero(now.live), now.state.generation + 1
        (self.folder / f"vectors-{generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._rows_file(generation, space), "wb") as file:
                for start in range(0, len(kept), structures.BLOCK):
                    file.write(np.ascontiguousarray(now.vectors[space][kept[start : start + structures.BLOCK]]).data)
                _sync(file)
        self._store.compact(kept, generation)

    def _acquire(self) -> None:
        """Become the only writer, and cut off what a killed one left."""
        if self._lock is not None:
            return
        self._lock = _lock_folder(self.folder)
        try:
            state = self.snapshot().state  # raises if the index is damaged: then nothing must be cut off
        except FineSightError:
            self._release()
            raise
        (self.folder / f"vectors-{state.generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._rows_file(state.generation, space), "ab") as file:
                self._require_rows(Path(file.name), state, space)
                file.truncate(state.rows * self._row_bytes(space))
        self._remove_stale()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove_stale(self) -> None:
        """Remove files that no commit names. Readers that have them open keep them."""
        state, named = self._store.state(), {one.file for one in self._store.structures()}
        for path in self.folder.iterdir():
            if path.name.startswith("vectors-") and path.name != f"vectors-{state.generation}":
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith((".faiss", ".faiss.tmp")) and path.name not in named:
                path.unlink(missing_ok=True)


def _keeps_frozen(run: Path) -> bool:
    """Return whether the verdict on a run was that the frozen features are better."""
    try:
        return bool(json.loads((run / "verdict.json").read_text(encoding="utf-8"))["kept"] == "frozen")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _refuse_foreign(folder: Path) -> None:
    """Raise ``FineSightError`` if ``folder`` is a file or holds anything that is not of an index."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FineSightError(f"{folder} is a file: --index must be a folder.")
    ours = {ENCODER, ITEMS, f"{ITEMS}-journal", LOCK, META, MODEL, NOTES, f"{NOTES}-journal"}
    scratch = (f".{ENCODER}.", f".{META}.", f".{MODEL}.")
    if any(path.name not in ours and not path.name.startswith(scratch) for path in folder.iterdir()):
        raise FineSightError(f"{folder} is not empty and holds no index: give --index a new folder.")


def _lock_folder(folder: Path) -> IO[bytes]:
    """Lock the folder for writing and return the handle that holds the lock."""
    try:
        return acquire(folder / LOCK)
    except Busy:
        raise FineSightError(f"Another process is writing to the index {folder}: wait for it to end.") from None


def _writing(folder: Path) -> AbstractContextManager[None]:
    return explain_os_errors(f"The index {folder} cannot be written", "make room, or give --index another folder")


def _sync(file: IO[bytes]) -> None:
    """Put the data on the disk, so that a commit never names rows that a power cut took."""
    file.flush()
    os.fsync(file.fileno())


def _file_size(file: Path) -> int:
    """Return the bytes of a file, 0 of a folder or of a journal that its writer has just removed."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
