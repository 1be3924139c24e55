"""The SQLite file of a folder index: its items, and which row of the vector files each one owns.

Vectors are appended to plain files first; the transaction that names their rows makes them part of the index. After a
kill, no item owns what lies past the last committed row, and the next writer cuts it off.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.errors import FineSightError
from finesight.search.base import Ids, IndexItem, ItemList

# What a catalog with other tables, other types or flipped bytes leads to.
DAMAGE = (sqlite3.Error, sqlite3.Warning, TypeError, ValueError, KeyError, IndexError, OverflowError)
NOT_DAMAGED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
TRY_AGAIN = "Make room or wait for other processes, and try again: it is as it was."
ANEW = "Remove the folder of the index and make it anew with `finesight index`."
BUSY_TIMEOUT = 60.0  # seconds to wait for another process that commits just now
SCHEMA = """
CREATE TABLE IF NOT EXISTS state (
    one INTEGER PRIMARY KEY CHECK (one = 0),
    generation INTEGER NOT NULL, rows INTEGER NOT NULL, version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, mask BLOB NOT NULL, mask_width INTEGER NOT NULL,
    row INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS items_by_row ON items (row);
CREATE TABLE IF NOT EXISTS dead (number INTEGER PRIMARY KEY, row INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS structures (space TEXT PRIMARY KEY, facts TEXT NOT NULL);
INSERT OR IGNORE INTO state VALUES (0, 0, 0, 0);
"""
# Checksums of the vectors of a row and of the item that owns it; earlier versions had none.
SUMS = "CREATE TABLE IF NOT EXISTS sums (row INTEGER PRIMARY KEY, vectors INTEGER NOT NULL, item INTEGER NOT NULL)"
FACTS = "id, path, bytes, mtime_ns, width, height, mask, mask_width"
ITEM = f"SELECT {FACTS} FROM items WHERE id = ?"


@dataclass(frozen=True)
class Structure:
    """A structure that makes searching one space fast, built over the first ``rows`` rows of a generation."""

    space: str
    generation: int
    rows: int
    kind: str  # "exact" | "hnsw" | "ivf-pq"
    file: str  # in the index folder; none for "exact"
    pool: int  # candidates whose exact scores are computed
    probes: int  # lists that are searched (ivf-pq)
    recall: float  # at 10, of exact search; measured on ``queries``
    queries: int
    seconds: float
    checksum: int | None = None  # of the file; earlier versions kept none


@dataclass(frozen=True)
class State:
    """The counters of an index that say what was committed last."""

    generation: int  # of the vector files: another one after they were compacted
    rows: int  # committed, dead ones among them
    version: int  # another one after every change


@dataclass(frozen=True)
class Changes:
    """What changed since a state that a reader knows, read in one transaction."""

    state: State
    ids: Ids  # of rows that were added
    rows: Ids
    dead: Ids  # rows that no item owns any more
    last_dead: int
    structures: dict[str, Structure]


class ItemStore:
    """SQLite with a rollback journal: safe against kills and power cuts, and readable from read-only places."""

    def __init__(self, file: Path, *, create: bool = False) -> None:
        self.file = file
        self._lock = threading.RLock()
        if not create and not file.is_file():
            raise FineSightError(f"The index in {file.parent} is damaged: it has no {file.name}. {ANEW}")
        try:
            self._db = sqlite3.connect(file, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
            if create:
                self._db.executescript(SCHEMA)
            self._file = _identity(file)
        except DAMAGE as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @property
    def is_replaced(self) -> bool:
        """Whether another file has the name of this one since it was opened."""
        return _identity(self.file) not in (None, self._file)

    def state(self) -> State:
        with self._transaction():
            return self._state()

    def changes(self, since: State | None, last_dead: int) -> Changes:
        """Return what was committed after ``since``, or everything if that is None or of another generation."""
        with self._transaction():
            state = self._state()
            if since is None or since.generation != state.generation:
                since, last_dead = State(state.generation, 0, -1), 0
            added = self._db.execute("SELECT id, row FROM items WHERE row >= ?", (since.rows,)).fetchall()
            gone = self._db.execute("SELECT number, row FROM dead WHERE number > ?", (last_dead,)).fetchall()
            structures = self._structures()
            pairs, dead = np.array(added, np.int64).reshape(-1, 2), np.array(gone, np.int64).reshape(-1, 2)
            ends = self._db.execute("SELECT MIN(row), MAX(row) FROM items").fetchone()
            self._require_rows(np.array([row for row in ends if row is not None], np.int64), state)
            self._require_rows(dead[:, 1], state)
        return Changes(
            state,
            pairs[:, 0],
            pairs[:, 1],
            dead[:, 1],
            int(dead[:, 0].max(initial=last_dead)),
            {one.space: one for one in structures if one.generation == state.generation},
        )

    def structures(self) -> list[Structure]:
        with self._transaction():
            return self._structures()

    def checksums(self) -> tuple[Ids, Ids]:
        """Return the rows of the vectors that have a checksum, ascending, and the checksum of each."""
        with self._transaction():
            pairs = np.array([(row, vectors) for row, vectors, _ in self._checksums()], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def damaged_rows(self) -> Ids:
        """Read the whole catalog and return the rows whose items are not what was written.

        Raises ``FineSightError`` if it is damaged as a whole.
        """
        with self._transaction():
            (words,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if words != "ok":
                raise ValueError(words)
            known = {row: item for row, _, item in self._checksums()}
            owned = self._db.execute(f"SELECT row, {FACTS} FROM items")
            return np.array([row for row, *facts in owned if known.get(row) not in (None, _sum(facts))], np.int64)

    def list_items(self) -> ItemList:
        with self._transaction():
            rows = self._db.execute("SELECT id, path, bytes, mtime_ns FROM items ORDER BY path").fetchall()
            return ItemList.from_rows([(item, os.fsdecode(path), size, mtime) for item, path, size, mtime in rows])

    def items(self, ids: Sequence[int]) -> list[IndexItem | None]:
        with self._transaction():
            rows = [self._db.execute(ITEM, (int(item),)).fetchone() for item in ids]
            return [None if row is None else _to_item(row) for row in rows]

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, items: Sequence[IndexItem], sums: Sequence[int]) -> None:
        """Commit items whose vectors are on disk already, in the rows that follow the last committed one.

        ``sums`` are the checksums of the vectors.
        """
        rows = [_to_row(item) for item in items]
        with self._transaction(write=True):
            first = self._state().rows
            for item in items:
                key = (item.id, os.fsencode(item.path))
                self._db.execute("INSERT INTO dead (row) SELECT row FROM items WHERE id = ? OR path = ?", key)
                self._db.execute("DELETE FROM items WHERE id = ? OR path = ?", key)
            self._db.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row, first + n) for n, row in enumerate(rows)],
            )
            self._db.execute(SUMS)
            self._db.executemany(
                "INSERT OR REPLACE INTO sums VALUES (?, ?, ?)",
                [(first + n, vectors, _sum(row)) for n, (vectors, row) in enumerate(zip(sums, rows, strict=True))],
            )
            self._db.execute("UPDATE state SET rows = rows + ?", (len(items),))

    def remove(self, ids: Ids) -> None:
        keys = [(int(item),) for item in ids]
        with self._transaction(write=True):
            self._db.executemany("INSERT INTO dead (row) SELECT row FROM items WHERE id = ?", keys)
            self._db.executemany("DELETE FROM items WHERE id = ?", keys)

    def compact(self, kept: Ids, generation: int) -> None:
        """Commit that row ``kept[i]`` is now row i of the vector files of ``generation``."""
        with self._transaction(write=True):
            self._db.executemany(  # ascending: a row only ever moves to a row that is free already
                "UPDATE items SET row = ? WHERE row = ?", [(new, old) for new, old in enumerate(kept.tolist())]
            )
            sums = {row: (vectors, item) for row, vectors, item in self._checksums()}
            self._db.execute(SUMS)
            self._db.execute("DELETE FROM sums")
            self._db.executemany(
                "INSERT INTO sums VALUES (?, ?, ?)",
                [(new, *sums[old]) for new, old in enumerate(kept.tolist()) if old in sums],
            )
            self._db.execute("DELETE FROM dead")
            self._db.execute("DELETE FROM structures")
            self._db.execute("UPDATE state SET generation = ?, rows = ?", (generation, len(kept)))

    def set_structures(self, structures: Sequence[Structure]) -> None:
        rows = [(one.space, json.dumps(asdict(one))) for one in structures]
        with self._transaction(write=True):
            self._db.execute("DELETE FROM structures")
            self._db.executemany("INSERT INTO structures VALUES (?, ?)", rows)

    # --- transactions ---------------------------------------------------------------------------------------------

    def _state(self) -> State:
        row = self._db.execute("SELECT generation, rows, version FROM state").fetchone()
        if row is None or not all(isinstance(number, int) and number >= 0 for number in row):
            raise ValueError("its counters are gone")
        return State(*row)

    @staticmethod
    def _require_rows(rows: Ids, state: State) -> None:
        if len(rows) and not (rows.min() >= 0 and rows.max() < state.rows):
            raise ValueError("an item owns a row that does not exist")

    def _checksums(self) -> list[tuple[int, int, int]]:
        known = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sums'").fetchone()
        return self._db.execute("SELECT row, vectors, item FROM sums ORDER BY row").fetchall() if known else []

    def _structures(self) -> list[Structure]:
        rows = self._db.execute("SELECT facts FROM structures").fetchall()
        return [Structure(**json.loads(text)) for (text,) in rows]

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[None]:
        """Run the block in one transaction: it reads one state, and what it writes is committed as a whole.

        Raises ``FineSightError`` if the file was replaced since it was opened, or SQLite fails.
        """
        with self._lock:
            if _identity(self.file) != self._file:
                raise FineSightError(
                    f"The index in {self.file.parent} was deleted or replaced while it was in use: open it again."
                )
            try:
                self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield
                    if write:
                        self._db.execute("UPDATE state SET version = version + 1")
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except DAMAGE as error:
                raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> FineSightError:
        if isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_DAMAGED:
            return FineSightError(f"The catalog {self.file} of the index cannot be used: {error}. {TRY_AGAIN}")
        return FineSightError(f"The catalog {self.file} of the index cannot be used: it is damaged ({error}). {ANEW}")


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what identifies the file whatever its name, None if it is gone.

    SQLite finds a journal by name: with a file that was replaced it would roll back, and remove, the new one's journal.
    """
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _to_row(item: IndexItem) -> tuple[object, ...]:
    mask = np.ascontiguousarray(item.mask, np.float32)
    facts = (item.id, os.fsencode(item.path), item.bytes, item.mtime_ns, item.width, item.height)
    return (*facts, mask.tobytes(), mask.shape[1])


def _sum(facts: Sequence[object]) -> int:
    """Return the checksum of an item, of the values of its columns."""
    return zlib.crc32(repr(tuple(facts)).encode())


def _to_item(row: tuple[Any, ...]) -> IndexItem:
    item, path, size, mtime_ns, width, height, mask, mask_width = row
    cells = np.frombuffer(mask, np.float32).reshape(-1, mask_width)
    return IndexItem(item, os.fsdecode(path), size, mtime_ns, width, height, cells)
