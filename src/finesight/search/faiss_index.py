"""An index in a folder: vectors in plain files that are mapped, items in SQLite, FAISS where looking at all is slow.

    index.json     how it was made            items.db         items, and whose row is whose
    encoder/       the encoder that made it   vectors-G/       a file of rows for each space, generation G
    skipped.csv    files that have no place   *.faiss          structures over the rows

One process writes at a time; any number read meanwhile, each search on one consistent state.
"""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import Ids, Index, IndexMeta, Item, Known, NewItems
from finesight.search.fitting import EXACT_NUMBERS, GRAPH_BYTES, RECALL, fitted
from finesight.search.index_folder import ENCODER, ITEMS, make_folder, only_writer, read_meta, sync, writing
from finesight.search.item_store import Catalog, Changes, State, Structure
from finesight.search.snapshot import Snapshot

MOST_DEAD = 0.2  # share of rows that are nobody's, from which the files are written anew


class FaissIndex(Index):
    """See the module. The limits are parameters so that each kind of structure can be had at any size."""

    def __init__(
        self,
        folder: str | Path,
        *,
        exact_numbers: int = EXACT_NUMBERS,
        graph_bytes: int = GRAPH_BYTES,
        least_recall: float = RECALL,
    ) -> None:
        self.folder = Path(folder)
        self.exact_numbers, self.graph_bytes, self.least_recall = exact_numbers, graph_bytes, least_recall
        self.meta = read_meta(self.folder)
        self._catalog = Catalog(self.folder / ITEMS)
        self._refreshing = threading.Lock()
        self._seen: Snapshot | None = None
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, folder: str | Path, meta: IndexMeta, encoder: Path) -> Self:
        """A new, empty index with a copy of its encoder."""
        make_folder(Path(folder), meta, encoder)
        return cls(folder)

    # --- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._now().count

    def known(self) -> Known:
        return self._catalog.known()

    def item(self, item: int) -> Item | None:
        return self._catalog.items([item])[0]

    def items(self, ids: Sequence[int]) -> list[Item | None]:
        return self._catalog.items(ids)

    def vectors(self, ids: Ids, space: str) -> Floats:
        now = self._now()
        wanted = np.asarray(ids, np.int64).reshape(-1)
        rows = now.rows_of(wanted)
        if (rows < 0).any():
            raise FineSightError(f"The index has no item {wanted[rows < 0][0]}.")
        found: Floats = np.array(now.vectors[self._space(space)][rows], np.float32)
        return found

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        now = self._now()
        vectors = now.vectors[self._space(space)]
        for start in range(0, now.state.rows, rows):
            live = now.live[start : start + rows]
            if live.any():
                yield now.ids[start : start + rows][live], np.asarray(vectors[start : start + rows])[live]

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        return self._now().search(np.ascontiguousarray(np.atleast_2d(queries), np.float32), k, self._space(space))

    def facts(self) -> dict[str, object]:
        now = self._now()
        spaces = {space: _facts(now, space) for space in self.meta.spaces}
        return {
            "store": "faiss",
            "items": now.count,
            **spaces[self.meta.spaces[0]],
            "spaces": spaces,
            "bytes": sum(map(_size, self.folder.glob("**/*"))),
        }

    def encoder_folder(self) -> Path:
        return self.folder / ENCODER

    def close(self) -> None:
        self._catalog.close()
        self._leave()

    def _space(self, space: str) -> str:
        if space not in self.meta.spaces:
            raise FineSightError(f"The index has no features {space!r}. It has: {', '.join(self.meta.spaces)}.")
        return space

    def _now(self) -> Snapshot:
        """What was committed last. Files may be replaced between being named and being opened: then once more."""
        for _ in range(10):
            seen, state = self._seen, self._catalog.state()
            if seen is not None and seen.state == state:
                return seen
            with self._refreshing:
                try:
                    self._seen = self._refreshed(self._seen)
                except FileNotFoundError:
                    continue
                return self._seen
        raise FineSightError(f"The index in {self.folder} is damaged: files of it are missing. Make it anew.")

    def _refreshed(self, seen: Snapshot | None) -> Snapshot:
        changes = self._catalog.changes(seen.state if seen else None, seen.last_dead if seen else 0)
        ids = np.full(changes.state.rows, -1, np.int64)
        if seen is not None and seen.state.generation == changes.state.generation:
            ids[: len(seen.ids)] = seen.ids
        ids[changes.dead] = -1
        ids[changes.rows] = changes.ids
        return Snapshot(
            changes.state,
            changes.last_dead,
            ids,
            {space: self._mapped(changes.state, space) for space in self.meta.spaces},
            changes.structures,
            self._loaded(changes, seen.loaded if seen is not None else {}),
        )

    def _loaded(self, changes: Changes, before: dict[str, Any]) -> dict[str, Any]:
        """A structure is loaded once, not at every change of the index."""
        wanted = [one for one in changes.structures.values() if one.file]
        return {
            one.file: before[one.file] if one.file in before else structures.read(self.folder, one) for one in wanted
        }

    def _mapped(self, state: State, space: str) -> Floats:
        """(rows, D), never in memory as a whole."""
        if not state.rows:
            return np.zeros((0, self.meta.dimension), np.float32)
        file = self._rows_file(state.generation, space)
        self._require_whole(file, state)
        return np.memmap(file, np.float32, "r", shape=(state.rows, self.meta.dimension))

    def _require_whole(self, file: Path, state: State) -> None:
        if file.stat().st_size < state.rows * self._row_bytes:
            raise FineSightError(f"The index in {self.folder} is damaged: {file.name} is too short. Make it anew.")

    def _rows_file(self, generation: int, space: str) -> Path:
        return self.folder / f"vectors-{generation}" / f"{space}.f32"

    @property
    def _row_bytes(self) -> int:
        return 4 * self.meta.dimension

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, batch: NewItems) -> None:
        items = self.checked(batch)
        if not items:
            return
        with writing(self.folder):
            self._enter()
            state = self._catalog.state()
            for space in self.meta.spaces:
                with open(self._rows_file(state.generation, space), "r+b") as file:
                    file.seek(state.rows * self._row_bytes)
                    file.write(np.ascontiguousarray(batch.vectors[space], np.float32).data)
                    sync(file)
        self._catalog.add(items)

    def remove(self, ids: Ids) -> None:
        with writing(self.folder):
            self._enter()
        self._catalog.remove(np.asarray(ids, np.int64))

    def finish(self) -> None:
        """Lets go of the folder too: another process may write to it from then on."""
        with writing(self.folder):
            self._enter()
            now = self._now()
            if now.state.rows - now.count > MOST_DEAD * now.state.rows:
                self._compact(now)
                now = self._now()
            built = [
                fitted(now, space, self.folder, self.exact_numbers, self.graph_bytes, self.least_recall)
                for space in self.meta.spaces
            ]
            if built != [now.structures.get(space) for space in self.meta.spaces]:
                self._catalog.set_structures(built)
            self._clean()
            self._leave()

    def _compact(self, now: Snapshot) -> None:
        """Rows that are somebody's into files of the next generation, which one commit then makes the ones."""
        kept, generation = np.flatnonzero(now.live), now.state.generation + 1
        (self.folder / f"vectors-{generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._rows_file(generation, space), "wb") as file:
                for start in range(0, len(kept), structures.BLOCK):
                    file.write(np.ascontiguousarray(now.vectors[space][kept[start : start + structures.BLOCK]]).data)
                sync(file)
        self._catalog.compact(kept, generation)

    def _enter(self) -> None:
        """As the only writer, and with nothing left of one that was killed."""
        if self._lock is not None:
            return
        self._lock = only_writer(self.folder)
        state = self._catalog.state()
        (self.folder / f"vectors-{state.generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._rows_file(state.generation, space), "ab") as file:
                self._require_whole(Path(file.name), state)
                file.truncate(state.rows * self._row_bytes)
        self._clean()

    def _leave(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _clean(self) -> None:
        """What no commit names: of a killed writer, or replaced. Readers that have it open keep it."""
        state, named = self._catalog.state(), {one.file for one in self._catalog.structures()}
        for path in self.folder.iterdir():
            if path.name.startswith("vectors-") and path.name != f"vectors-{state.generation}":
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith((".faiss", ".faiss.tmp")) and path.name not in named:
                path.unlink(missing_ok=True)


def _size(file: Path) -> int:
    """Bytes; none of a journal that its writer has just removed."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _facts(now: Snapshot, space: str) -> dict[str, object]:
    structure: Structure | None = now.structures.get(space)
    if structure is None or now.loaded.get(structure.file) is None:
        return {"kind": "exact", "recall_at_10": 1.0}
    return {
        "kind": structure.kind,
        "recall_at_10": round(structure.recall, 4),
        "recall_queries": structure.queries,
        "candidates": structure.pool,
        "built_over": structure.rows,
        "build_seconds": structure.seconds,
    }
