"""The state of a folder index at one moment, and exact or fast search in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.features.types import Floats
from finesight.search.base import Ids
from finesight.search.item_store import State, Structure
from finesight.search.nearest import rank, scan
from finesight.search.structures import candidates

POOL = 4  # candidates for each hit, at least


@dataclass(frozen=True)
class Snapshot:
    """One committed state: a search that uses it never sees half of a change."""

    state: State
    last_dead: int
    ids: Ids  # (rows,) of each row, -1 where no item owns it
    vectors: dict[str, Floats]  # (rows, D) each, mapped
    structures: dict[str, Structure]
    loaded: dict[str, Any]  # FAISS structures, by file
    damaged: Ids  # of items whose vectors are not what was written: no search finds them

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        return self.ids >= 0

    @cached_property
    def count(self) -> int:
        return int(self.live.sum())

    @cached_property
    def _by_id(self) -> tuple[Ids, Ids]:
        """Return all ids ascending, and the row of each."""
        rows = np.flatnonzero(self.live)
        order = np.argsort(self.ids[rows])
        return self.ids[rows][order], rows[order]

    def rows_of(self, ids: Ids) -> Ids:
        """Return the row of each id, -1 where there is none."""
        known, rows = self._by_id
        if not len(known):
            return np.full(len(ids), -1, np.int64)
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[places] == ids, rows[places], -1)

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        """Search by the structure of the space if there is one that loaded, else exactly."""
        structure = self._usable(space)
        if structure is None:
            return self.exact(queries, k, space)
        return self.by_structure(queries, k, space, structure, self.loaded[structure.file])

    def facts(self, space: str) -> dict[str, object]:
        """Return how the space is searched and with which measured recall."""
        structure = self._usable(space)
        if structure is None:
            return {"kind": "exact", "recall_at_10": 1.0}
        return {
            "kind": structure.kind,
            "recall_at_10": round(structure.recall, 4),
            "recall_queries": structure.queries,
            "candidates": structure.pool,
            "built_over": structure.rows,
            "build_seconds": structure.seconds,
        }

    def _usable(self, space: str) -> Structure | None:
        structure = self.structures.get(space)
        return structure if structure is not None and self.loaded.get(structure.file) is not None else None

    def exact(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        return self._rank(queries, list(scan(queries, self.vectors[space], self.live, k)), k, space)

    def by_structure(
        self, queries: Floats, k: int, space: str, structure: Structure, loaded: Any
    ) -> tuple[Floats, Ids]:
        """Rank the candidates of the structure and the nearest of the rows added after it by their exact scores.

        Lists name no more rows than are in those searched, and a graph no more than are connected: where that is fewer
        than k, every row is compared.
        """
        rows = self._near(loaded, queries, max(structure.pool, POOL * k))
        if self.state.rows > structure.rows:
            late = scan(queries, self.vectors[space][structure.rows :], self.live[structure.rows :], k)
            rows = [np.concatenate([near, structure.rows + more]) for near, more in zip(rows, late, strict=True)]
        if min(map(len, rows), default=k) < min(k, self.count):
            return self.exact(queries, k, space)
        return self._rank(queries, rows, k, space)

    def _rank(self, queries: Floats, rows: list[Ids], k: int, space: str) -> tuple[Floats, Ids]:
        scores, ids = np.full((len(queries), k), -1, np.float32), np.full((len(queries), k), -1, np.int64)
        for n, (query, near) in enumerate(zip(queries, rows, strict=True)):
            scores[n], ids[n] = rank(query, near, self.vectors[space], self.ids, k)
        return scores, ids

    def _near(self, loaded: Any, queries: Floats, pool: int) -> list[Ids]:
        """Return candidates of each query that have an owner; where too few have one, more candidates are asked for."""
        wanted = min(pool, int(self.live[: loaded.ntotal].sum()))
        rows = [self._owned(near) for near in candidates(loaded, queries, pool)]
        for n, near in enumerate(rows):
            more = pool
            while len(near) < wanted and more < loaded.ntotal:
                more *= 2
                near = self._owned(candidates(loaded, queries[n : n + 1], more)[0])
            rows[n] = near
        return rows

    def _owned(self, rows: Ids) -> Ids:
        rows = rows[rows >= 0]
        return rows[self.live[rows]]
