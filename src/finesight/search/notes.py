"""What people write about the images of an index: labels, tags, names of parts, saved searches, pins and groups.

It is kept in a SQLite file of its own, so that making an index anew never loses it. Images are known by the ids of the
index, which come from their paths: they are the same in every index of the same folder.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finesight.errors import FineSightError

NOTES = "notes.db"
BUSY_TIMEOUT = 20.0  # seconds to wait for another process that writes just now
UNDO_STEPS = 50  # changes that can be taken back
MOST_TAGS = 50  # of one image
READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
SCHEMA = """
CREATE TABLE IF NOT EXISTS labels (id INTEGER PRIMARY KEY, label TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tags (id INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (id, tag)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, before TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, time REAL NOT NULL, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groupings (
    version INTEGER PRIMARY KEY AUTOINCREMENT, facts TEXT NOT NULL, members BLOB NOT NULL
);
"""


class NotesReadOnly(FineSightError):
    """The file cannot be written."""


class NotTheLastChange(FineSightError):
    """Only the last change can be taken back."""


@dataclass(frozen=True)
class Note:
    """What is written about one image."""

    label: str = ""
    tags: tuple[str, ...] = ()  # sorted


NOTHING = Note()


class Notes:
    """Read and write one file of notes; threads may share it. It is made by the first thing that is written."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._notes: dict[int, Note] = {}
        self._read = -1  # PRAGMA data_version when the notes were read

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    # --- labels and tags ------------------------------------------------------------------------------------------

    def all(self) -> Mapping[int, Note]:
        """Return the notes of all images that have any, by id. It is not changed later: a change makes a new one."""
        with self._reading() as db:
            if db is None:
                return {}
            (version,) = db.execute("PRAGMA data_version").fetchone()  # another one after another process wrote
            if version != self._read:
                tags: dict[int, list[str]] = {}
                for item, tag in db.execute("SELECT id, tag FROM tags ORDER BY id, tag"):
                    tags.setdefault(item, []).append(tag)
                labels = dict(db.execute("SELECT id, label FROM labels").fetchall())
                self._notes = {item: Note(labels.get(item, ""), tuple(tags.get(item, ()))) for item in {*labels, *tags}}
                self._read = version
            return self._notes

    def change(
        self, ids: Iterable[int], *, label: str | None = None, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> tuple[int | None, list[int]]:
        """Label and tag images. Return the number of the change, for ``undo``, and the images that it changed.

        A label of None leaves the labels as they are, an empty one removes them.
        """
        return self.change_each({item: label for item in ids}, add=add, remove=remove)

    def change_each(
        self, labels: Mapping[int, str | None], *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> tuple[int | None, list[int]]:
        """Give each image its own label, as ``change`` does, in one change."""
        known = self.all()
        after: dict[int, Note] = {}
        for item, label in labels.items():
            old = known.get(item, NOTHING)
            tags = tuple(sorted({*old.tags, *add} - set(remove)))[:MOST_TAGS]
            new = Note(old.label if label is None else label, tags)
            if new != old:
                after[item] = new
        if not after:
            return None, []
        before = [(item, known.get(item, NOTHING)) for item in after]
        with self._writing() as db:
            self._put(db, after.items())
            text = json.dumps([(item, note.label, note.tags) for item, note in before])
            number = db.execute("INSERT INTO changes (time, before) VALUES (?, ?)", (time.time(), text)).lastrowid
            db.execute("DELETE FROM changes WHERE number <= ?", ((number or 0) - UNDO_STEPS,))
        return number, list(after)

    def last_change(self) -> int | None:
        """Return the number of the change that ``undo`` takes back."""
        with self._reading() as db:
            found: int | None = None if db is None else db.execute("SELECT MAX(number) FROM changes").fetchone()[0]
            return found

    def undo(self, number: int) -> list[int]:
        """Take back the last change, which must be this one. Return the images that it concerned."""
        with self._writing() as db:
            row = db.execute("SELECT number, before FROM changes ORDER BY number DESC LIMIT 1").fetchone()
            if row is None or row[0] != number:
                raise NotTheLastChange("Only the last change can be taken back, and this is not the last one any more.")
            before = json.loads(row[1])
            self._put(db, [(item, Note(label, tuple(tags))) for item, label, tags in before])
            db.execute("DELETE FROM changes WHERE number = ?", (number,))
        return [item for item, _, _ in before]

    def _put(self, db: sqlite3.Connection, notes: Iterable[tuple[int, Note]]) -> None:
        rows = list(notes)
        ids = [(item,) for item, _ in rows]
        db.executemany("DELETE FROM labels WHERE id = ?", ids)
        db.executemany("DELETE FROM tags WHERE id = ?", ids)
        db.executemany("INSERT INTO labels VALUES (?, ?)", [(item, note.label) for item, note in rows if note.label])
        db.executemany("INSERT INTO tags VALUES (?, ?)", [(item, tag) for item, note in rows for tag in note.tags])

    # --- other things ---------------------------------------------------------------------------------------------

    def kept(self, kind: str) -> dict[str, Any]:
        """Return all values of a kind by name, the oldest first."""
        with self._reading() as db:
            if db is None:
                return {}
            rows = db.execute("SELECT name, value FROM kept WHERE kind = ? ORDER BY time, name", (kind,)).fetchall()
            return {name: json.loads(value) for name, value in rows}

    def keep(self, kind: str, name: str, value: Any) -> None:
        """Keep a value under a name; None forgets it."""
        with self._writing() as db:
            if value is None:
                db.execute("DELETE FROM kept WHERE kind = ? AND name = ?", (kind, name))
            else:
                row = (kind, name, json.dumps(value), time.time())
                db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", row)

    def grouping(self) -> tuple[int, str, bytes] | None:
        """Return version, facts and members of the grouping that was written last."""
        with self._reading() as db:
            if db is None:
                return None
            row: tuple[int, str, bytes] | None = db.execute(
                "SELECT version, facts, members FROM groupings ORDER BY version DESC LIMIT 1"
            ).fetchone()
            return row

    def grouping_version(self) -> int | None:
        """Return the version of the grouping that was written last."""
        with self._reading() as db:
            found: int | None = None if db is None else db.execute("SELECT MAX(version) FROM groupings").fetchone()[0]
            return found

    def put_grouping(self, facts: str, members: bytes, *, keep: int) -> int:
        """Write a grouping and return its version; the last ``keep`` ones stay, to go back to."""
        with self._writing() as db:
            version = db.execute("INSERT INTO groupings (facts, members) VALUES (?, ?)", (facts, members)).lastrowid
            db.execute("DELETE FROM groupings WHERE version <= ?", ((version or 0) - keep,))
            return version or 0

    def drop_grouping(self, version: int) -> None:
        """Go back to the grouping before this one, which must be the last."""
        with self._writing() as db:
            (last,) = db.execute("SELECT MAX(version) FROM groupings").fetchone()
            if last != version:
                raise NotTheLastChange("The groups were changed elsewhere meanwhile: look at them again.")
            db.execute("DELETE FROM groupings WHERE version = ?", (version,))

    # --- the file -------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection, or None if nothing has been written yet."""
        with self._lock, self._in_words():
            if self._db is None and self.file.is_file():
                self._db = self._connect()
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction."""
        with self._lock, self._in_words():
            if self._db is None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._db = self._connect()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._read = -1  # data_version does not tell of our own changes

    def _connect(self) -> sqlite3.Connection:
        fresh = not self.file.is_file()
        db = sqlite3.connect(self.file, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        if fresh or not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'groupings'").fetchone():
            db.executescript(SCHEMA)
        return db

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turn failures of the disk and of SQLite into ``FineSightError``."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise NotesReadOnly("Labels and other notes cannot be saved: the disk is full; make room.") from error
            if code in READ_ONLY:
                raise self._read_only() from error
            raise FineSightError(f"The notes in {self.file} cannot be used: {error}.") from error
        except OSError as error:
            raise self._read_only() from error

    def _read_only(self) -> NotesReadOnly:
        return NotesReadOnly("Labels and other notes cannot be saved: the folder of the index cannot be written.")
