"""An index in Milvus: what a Milvus Lite file and a server have in common.

A file has one collection for all (``milvus_file``), a server one for each space and a manifest (``milvus_server``).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from finesight.errors import FineSightError
from finesight.features.encoder_folder import encoder_folder, fingerprint
from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import Ids, Index, IndexMeta
from finesight.search.milvus_client import EQUAL, TIMEOUT, Address, connections, milvus_errors, sort_hits
from finesight.search.milvus_manifest import LEASE_SECONDS, ManifestLog

EFFORTS = (64, 128, 256, 512, 1024, 2048)  # candidates of a graph, tried in turn until the recall is reached
QUERY_IMAGES = 3000  # images that the queries of the recall are taken from
QUERIES = 16  # of one request while the recall is measured
REQUEST_BYTES = 32 * 2**20  # half of what a server takes by default
PAGE_BYTES = 32 * 2**20  # of vectors that one page may hold
MAX_HITS = 16_384  # of one search: a limit of Milvus
TIES = 16  # hits asked for beyond k: of equal ones the smallest ids count
EXACT = {"kind": "exact", "recall_at_10": 1.0}
NO_INDEX = "There is no index {}. Make one with `finesight index`."

Hits = tuple[Ids, Floats]  # ids and inner products, best first


@dataclass(frozen=True)
class MilvusLimits:
    """How much is asked of Milvus at a time, and how much a graph must find."""

    page_rows: int = 4096  # entities of one answer
    timeout: float = TIMEOUT  # seconds, of each request
    min_recall: float = structures.MIN_RECALL
    lease: float = LEASE_SECONDS  # after which a writer elsewhere that gives no sign of life is taken for dead


class MilvusIndex(Index):
    """Wrap a connection; ``open`` and ``create`` make it. In a new file every vector is compared (FLAT), in a server a
    graph is searched (HNSW), unless ``kind`` says otherwise."""

    def __init__(self, address: Address, client: Any, limits: MilvusLimits) -> None:
        self.address, self.limits = address, limits
        self._client, self._open = client, True

    @classmethod
    def open(cls, where: str, limits: MilvusLimits | None = None) -> Self:
        """Connect to an index; raise ``FineSightError`` if there is none or it cannot be reached."""
        address, limits = Address.parse(where), limits or MilvusLimits()
        if address.lite and not os.path.exists(address.uri):
            raise FineSightError(NO_INDEX.format(address.shown))
        with _connect(address, limits) as client:
            return cast(Self, _kind_of(address, client)(address, client, limits))

    @classmethod
    def create(
        cls, where: str, meta: IndexMeta, encoder: Path, *, kind: str = "", limits: MilvusLimits | None = None
    ) -> Self:
        """Make an empty index. A collection holds no files: the encoder stays where it is, in the run."""
        address, limits = Address.parse(where), limits or MilvusLimits()
        with _connect(address, limits) as client:
            if _exists(address, client):
                raise FineSightError(f"There is an index {address.shown} already.")
            made = _new_kind(address)
            made.prepare(address, client, meta, kind, limits)
            return cast(Self, made(address, client, limits))

    @classmethod
    def exists(cls, where: str) -> bool:
        address = Address.parse(where)
        if address.lite and not os.path.exists(address.uri):
            return False
        client = connections.open(address)
        try:
            with milvus_errors(address):
                return _exists(address, client)
        finally:
            connections.close(address, client)

    @classmethod
    @abstractmethod
    def prepare(cls, address: Address, client: Any, meta: IndexMeta, kind: str, limits: MilvusLimits) -> None:
        """Make the collections of an empty index."""

    # --- reading --------------------------------------------------------------------------------------------------

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        queries = np.ascontiguousarray(np.atleast_2d(queries), np.float32)
        return self._ask(queries, k, self.check_space(space), int(self._facts(space).get("candidates", 0)))

    def facts(self) -> dict[str, object]:
        items = len(self)
        spaces = {space: self._facts(space) for space in self.meta.spaces}
        first = spaces[self.meta.spaces[0]]
        return {"store": "milvus", "items": items, **first, "spaces": spaces, "place": self.address.shown}

    def encoder_folder(self) -> Path:
        home = encoder_folder(self.meta.run)
        advice = "Give a copy of that run with --run RUN."
        if not home.is_dir():
            raise FineSightError(
                f"The encoder that made the index was in {self.meta.run}, which is not there. {advice}"
            )
        if fingerprint(home) != self.meta.fingerprint:
            raise FineSightError(
                f"The encoder in {self.meta.run} is not the one that made the index any more. {advice}"
            )
        return home

    def close(self) -> None:
        if self._open:
            self._open = False
            connections.close(self.address, self._client)

    @abstractmethod
    def _facts(self, space: str) -> dict[str, Any]:
        """Return how a space is searched, as it was measured last."""

    @abstractmethod
    def _ask(self, queries: Floats, k: int, space: str, effort: int) -> tuple[Floats, Ids]:
        """Search the state that counts now, with so many candidates of a graph."""

    @abstractmethod
    def _nearest(self, queries: Floats, limit: int, space: str, options: dict[str, Any], now: Any) -> list[Hits]:
        """Ask Milvus for the nearest of each query in the state ``now`` of the index."""

    def _page_rows(self, rows: int, space: str) -> int:
        """Return how many vectors of a space go into one page, at most ``rows``."""
        return max(1, min(rows, PAGE_BYTES // (4 * self.meta.width(space))))

    def _search(self, queries: Floats, k: int, space: str, effort: int, now: Any = None) -> tuple[Floats, Ids]:
        """Search, and ask for more hits where so many are equal that those with the smallest ids may be missing."""
        scores, ids = np.full((len(queries), k), -1, np.float32), np.full((len(queries), k), -1, np.int64)
        left, limit = np.arange(len(queries)), min(MAX_HITS, k + TIES)
        while len(left):
            options = {"metric_type": "IP", "params": {"ef": max(effort, limit)} if effort else {}}
            unclear = []
            for n, (items, found) in zip(
                left.tolist(), self._nearest(queries[left], limit, space, options, now), strict=True
            ):
                products = found.astype(np.float64)
                if limit < MAX_HITS and len(items) == limit and products[k - 1] - products[-1] < EQUAL:
                    unclear.append(n)
                best, names = sort_hits(products, items)
                scores[n, : len(items)] = np.minimum(best[:k], 1)
                ids[n, : len(items)] = names[:k]
            left, limit = np.array(unclear, np.int64), min(MAX_HITS, 4 * limit)
        return scores, ids

    # --- recall ---------------------------------------------------------------------------------------------------

    def _measure(self, space: str, kind: str) -> dict[str, Any]:
        """Return how a space is searched: with more candidates, step by step, until enough is found."""
        if kind in ("FLAT", "BRUTE_FORCE") or not len(self):
            return dict(EXACT)
        queries = self._sample_queries(space)
        best = self._exact_scores(queries, structures.K, space)
        facts: dict[str, Any] = {}
        for effort in EFFORTS:
            parts = [queries[n : n + QUERIES] for n in range(0, len(queries), QUERIES)]
            scores = np.concatenate([self._ask(part, structures.K, space, effort)[0] for part in parts])
            share = structures.worst_recall(scores, best)
            facts = {"kind": kind.lower(), "recall_at_10": round(share, 4)}
            facts |= {"recall_queries": len(queries), "candidates": effort}
            if share >= structures.TARGET_RECALL:
                break
        if facts["recall_at_10"] < self.limits.min_recall:
            raise FineSightError(
                f"The graph of {self.address.shown} finds {facts['recall_at_10']:.3f} of the ten nearest by {space}, "
                f"less than {self.limits.min_recall}: make the index anew with a larger M on the server."
            )
        return facts

    def _sample_queries(self, space: str) -> Floats:
        ids = np.sort(self.list_items().ids)
        some = np.sort(np.random.default_rng(0).choice(ids, min(QUERY_IMAGES, len(ids)), replace=False))
        vectors = self.vectors(some, space)
        return structures.sample_queries(vectors, np.ones(len(vectors), bool), structures.RECALL_QUERIES)

    def _exact_scores(self, queries: Floats, k: int, space: str) -> Floats:
        """Return the k best scores of each query, reading every vector once. (n, D) -> (n, k)"""
        best = np.full((len(queries), k), -1, np.float32)
        for _, vectors in self.blocks(space):
            best = -np.sort(-np.concatenate([best, queries @ vectors.T], axis=1), axis=1)[:, :k]
        return best


def _new_kind(address: Address) -> type[MilvusIndex]:
    from finesight.search.milvus_file import MilvusFileIndex
    from finesight.search.milvus_server import MilvusServerIndex

    return MilvusFileIndex if address.lite else MilvusServerIndex


def _kind_of(address: Address, client: Any) -> type[MilvusIndex]:
    """Return the class of an index that exists: a server may have one of an older version, in one collection."""
    from finesight.search.milvus_file import MilvusFileIndex

    if client.has_collection(address.collection):
        return MilvusFileIndex
    if _exists(address, client):
        return _new_kind(address)
    raise FineSightError(NO_INDEX.format(address.shown))


def _exists(address: Address, client: Any) -> bool:
    if client.has_collection(address.collection):
        return True
    return not address.lite and bool(ManifestLog(client, address, TIMEOUT).numbers())


@contextmanager
def _connect(address: Address, limits: MilvusLimits) -> Iterator[Any]:
    """Yield a client that stays open unless the block fails."""
    client = connections.open(address, limits.timeout)
    try:
        with milvus_errors(address):
            yield client
    except BaseException:
        connections.close(address, client)
        raise
