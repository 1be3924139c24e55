"""An index at one moment, and what is nearest in it: a search never sees half of a change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.features.types import Floats
from finesight.search.base import Ids
from finesight.search.item_store import State, Structure
from finesight.search.nearest import ranked, scan
from finesight.search.structures import candidates

POOL = 4  # candidates for each hit, at least


@dataclass(frozen=True)
class Snapshot:
    state: State
    last_dead: int
    ids: Ids  # (rows,) of each row, -1 where it is nobody's
    vectors: dict[str, Floats]  # (rows, D) each, mapped
    structures: dict[str, Structure]
    loaded: dict[str, Any]  # FAISS structures, by file

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        return self.ids >= 0

    @cached_property
    def count(self) -> int:
        return int(self.live.sum())

    @cached_property
    def _by_id(self) -> tuple[Ids, Ids]:
        """Ids ascending, and the row of each."""
        rows = np.flatnonzero(self.live)
        order = np.argsort(self.ids[rows])
        return self.ids[rows][order], rows[order]

    def rows_of(self, ids: Ids) -> Ids:
        """The row of each item, -1 where there is none."""
        known, rows = self._by_id
        if not len(known):
            return np.full(len(ids), -1, np.int64)
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[places] == ids, rows[places], -1)

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        """By the structure of the space if it has one that is whole."""
        structure = self.structures.get(space)
        if structure is None or self.loaded.get(structure.file) is None:
            return self.exact(queries, k, space)
        return self.by_structure(queries, k, space, structure, self.loaded[structure.file])

    def exact(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        return self._ranked(queries, list(scan(queries, self.vectors[space], self.live, k)), k, space)

    def by_structure(
        self, queries: Floats, k: int, space: str, structure: Structure, loaded: Any
    ) -> tuple[Floats, Ids]:
        """Candidates from the structure, and exactly from the rows that came after it; then their exact scores.

        However many are asked for, lists name no more than lie in those looked at, and a graph no more than hang
        together: where that is too few, every row is looked at.
        """
        rows = self._near(loaded, queries, max(structure.pool, POOL * k))
        if self.state.rows > structure.rows:
            late = scan(queries, self.vectors[space][structure.rows :], self.live[structure.rows :], k)
            rows = [np.concatenate([near, structure.rows + more]) for near, more in zip(rows, late, strict=True)]
        if min(map(len, rows), default=k) < min(k, self.count):
            return self.exact(queries, k, space)
        return self._ranked(queries, rows, k, space)

    def _ranked(self, queries: Floats, rows: list[Ids], k: int, space: str) -> tuple[Floats, Ids]:
        scores, ids = np.full((len(queries), k), -1, np.float32), np.full((len(queries), k), -1, np.int64)
        for n, (query, near) in enumerate(zip(queries, rows, strict=True)):
            scores[n], ids[n] = ranked(query, near, self.vectors[space], self.ids, k)
        return scores, ids

    def _near(self, loaded: Any, queries: Floats, pool: int) -> list[Ids]:
        """Live candidates of each query; asked for again, and for more, where too many were nobody's."""
        wanted = min(pool, int(self.live[: loaded.ntotal].sum()))
        rows = [self._alive(near) for near in candidates(loaded, queries, pool)]
        for n, near in enumerate(rows):
            more = pool
            while len(near) < wanted and more < loaded.ntotal:
                more *= 2
                near = self._alive(candidates(loaded, queries[n : n + 1], more)[0])
            rows[n] = near
        return rows

    def _alive(self, rows: Ids) -> Ids:
        rows = rows[rows >= 0]
        return rows[self.live[rows]]
