"""An index in a folder: vectors in memory-mapped files, items in SQLite, FAISS where exact search is slow.

    index.json     how it was made            items.db         items, and which row of the vectors is whose
    encoder/       the encoder that made it   vectors-G/       a file of rows for each space, generation G
    model.onnx     its exported file, which may be all there is of it
    skipped.csv    files that were left out   *.faiss          structures over the rows
    notes.db       what people wrote about the images (finesight.search.notes); in a run it is in the run's folder

One process writes at a time; any number read meanwhile, each search on one consistent state.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

import numpy as np

from finesight.errors import FineSightError
from finesight.features.encoder_folder import is_model_file
from finesight.features.types import Floats
from finesight.io.atomic import atomic_path, copy_folder, write_atomic
from finesight.io.console import console, format_count
from finesight.search import structures
from finesight.search.base import MODEL, Ids, Index, IndexItem, IndexMeta, ItemList, NewItems
from finesight.search.checksums import CHECKED_BYTES, damaged_rows, row_sums
from finesight.search.index_folder import (
    ENCODER,
    ITEMS,
    META,
    explain_write_errors,
    file_size,
    find_index,
    is_index,
    lock_folder,
    place_of_notes,
    refuse_foreign,
)
from finesight.search.item_store import ANEW, Changes, ItemStore
from finesight.search.snapshot import Snapshot
from finesight.search.structures import FaissLimits, fit_structure
from finesight.search.vector_files import VectorFiles

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
        self._vectors = VectorFiles(self.folder, self.meta)
        self._refreshing = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._lock: IO[bytes] | None = None
        self._check_all = False  # however large the files are

    @classmethod
    def open(cls, where: str | Path) -> Self:
        """Open the index in the folder ``where``, or the one of the run ``where``; raise ``FineSightError`` if none.

        Of a run that has one before training and one after it, it is that of the encoder that was kept.
        """
        return cls(find_index(where))

    @classmethod
    def exists(cls, where: str | Path) -> bool:
        return is_index(Path(where).expanduser())

    @classmethod
    def create(cls, where: str | Path, meta: IndexMeta, encoder: Path) -> Self:
        """Make an empty index with a copy of its encoder. ``index.json`` comes last: it makes the folder an index."""
        folder = Path(where).expanduser()
        refuse_foreign(folder)
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with lock_folder(folder):
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
            "bytes": sum(map(file_size, self.folder.glob("**/*"))),
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
        return place_of_notes(self.folder)

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
        vectors = {space: self._vectors.map(changes.state, space) for space in self.meta.spaces}  # first
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

    # --- writing --------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        with explain_write_errors(self.folder):
            self._acquire()
        try:
            yield
        finally:
            self._release()

    def add(self, batch: NewItems) -> None:
        items = self.check_batch(batch)
        if not items:
            return
        with explain_write_errors(self.folder):
            self._acquire()
            self._vectors.append(self._store.state(), batch.vectors)
        self._store.add(items, row_sums([batch.vectors[space] for space in self.meta.spaces]))

    def remove(self, ids: Ids) -> None:
        with explain_write_errors(self.folder):
            self._acquire()
        self._store.remove(np.asarray(ids, np.int64))

    def finish(self) -> None:
        """Build the structures that are needed, and let other processes write from then on."""
        with explain_write_errors(self.folder):
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
        self._vectors.copy(now.vectors, kept, generation)
        self._store.compact(kept, generation)

    def _acquire(self) -> None:
        """Become the only writer, and cut off what a killed one left."""
        if self._lock is not None:
            return
        self._lock = lock_folder(self.folder)
        try:
            state = self.snapshot().state  # raises if the index is damaged: then nothing must be cut off
        except FineSightError:
            self._release()
            raise
        self._vectors.cut_off(state)
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
