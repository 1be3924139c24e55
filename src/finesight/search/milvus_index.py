"""An index in a Milvus collection: any machine that reaches the server can search it.

Each image is one entity, and its id is the primary key: adding an image again replaces it, so a build that was killed
and runs again doubles nothing. Milvus commits what one request brings as a whole; a batch larger than a request may be
goes in several. Replacing an image is a deletion and an insertion in one request, which a Milvus Lite that is killed
meanwhile may have done half: then the image is missing, and the next update adds it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from finesight.errors import FineSightError
from finesight.features.encoder_folder import encoder_folder, fingerprint
from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import Ids, Index, IndexItem, IndexMeta, ItemList, NewItems
from finesight.search.image_files import path_id
from finesight.search.milvus_client import (
    EQUAL,
    FIELDS,
    META,
    STRONG,
    TIMEOUT,
    Address,
    connections,
    from_entity,
    make_collection,
    milvus_errors,
    path_to_text,
    sort_hits,
    text_to_path,
    to_entity,
    vector_field,
)

FACTS = "finesight.facts"  # a property of the collection
EFFORTS = (64, 128, 256, 512, 1024, 2048)  # candidates of a graph, tried in turn until the recall is reached
QUERY_IMAGES = 3000  # images that the queries of the recall are taken from
REQUEST_BYTES = 32 * 2**20  # half of what a server takes by default
PAGE_BYTES = 32 * 2**20  # of vectors that one page may hold
MAX_HITS = 16_384  # of one search: a limit of Milvus
TIES = 16  # hits asked for beyond k: of equal ones the smallest ids count
FACTS_SECONDS = 10.0
BUILD_SECONDS = 3600.0  # for a server to build its graph
EXACT = {"kind": "exact", "recall_at_10": 1.0}


@dataclass(frozen=True)
class MilvusLimits:
    """How much is asked of Milvus at a time, and how much a graph must find."""

    page_rows: int = 4096  # entities of one answer
    timeout: float = TIMEOUT  # seconds, of each request
    min_recall: float = structures.MIN_RECALL


class MilvusIndex(Index):
    """Wrap a collection; ``open`` and ``create`` connect to it. In a new one every vector is compared in a file (FLAT),
    and a graph is searched in a server (HNSW), unless ``kind`` says otherwise."""

    def __init__(self, address: Address, client: Any, limits: MilvusLimits) -> None:
        self.address, self.limits = address, limits
        self._client, self._open = client, True
        self._held_facts: tuple[float, dict[str, Any]] = (float("-inf"), {})
        if not client.has_collection(address.collection):
            raise FineSightError(f"There is no index {address.shown}. Make one with `finesight index`.")
        described = client.describe_collection(address.collection)
        # The meta is kept twice: Milvus Lite loses descriptions, some servers properties.
        text = described.get("properties", {}).get(META) or described.get("description", "")
        self.meta = IndexMeta.parse(text, f"The collection {address.shown}")
        client.load_collection(address.collection)

    @classmethod
    def open(cls, where: str, limits: MilvusLimits | None = None) -> Self:
        """Connect to an index; raise ``FineSightError`` if there is none or it cannot be reached."""
        address = Address.parse(where)
        if address.lite and not os.path.exists(address.uri):
            raise FineSightError(f"There is no index {address.shown}. Make one with `finesight index`.")
        return cls._connect(address, limits)

    @classmethod
    def create(
        cls, where: str, meta: IndexMeta, encoder: Path, *, kind: str = "", limits: MilvusLimits | None = None
    ) -> Self:
        """Make an empty index. A collection holds no files: the encoder stays where it is, in the run."""
        address = Address.parse(where)

        def prepare(client: Any) -> None:
            if client.has_collection(address.collection):
                raise FineSightError(f"There is an index {address.shown} already.")
            make_collection(client, address, meta, kind or ("FLAT" if address.lite else "HNSW"))

        return cls._connect(address, limits, prepare)

    @classmethod
    def exists(cls, where: str) -> bool:
        address = Address.parse(where)
        if address.lite and not os.path.exists(address.uri):
            return False
        client = connections.open(address)
        try:
            with milvus_errors(address):
                return bool(client.has_collection(address.collection))
        finally:
            connections.close(address, client)

    @classmethod
    def _connect(
        cls, address: Address, limits: MilvusLimits | None, prepare: Callable[[Any], None] = lambda client: None
    ) -> Self:
        limits = limits or MilvusLimits()
        client = connections.open(address, limits.timeout)
        try:
            with milvus_errors(address):
                prepare(client)
                return cls(address, client, limits)
        except BaseException:
            connections.close(address, client)
            raise

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client for the collection; raise ``FineSightError`` if Milvus fails."""
        with milvus_errors(self.address):
            return getattr(self._client, method)(self.address.collection, *args, **options)

    # --- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"], **STRONG)[0]["count(*)"])

    def list_items(self) -> ItemList:
        rows = [
            (row["id"], text_to_path(row["path"]), row["bytes"], row["mtime_ns"])
            for page in self._pages(("path", "bytes", "mtime_ns"), self.limits.page_rows)
            for row in page
        ]
        return ItemList.from_rows(sorted(rows, key=lambda row: (row[1], row[0])))

    def items(self, ids: Sequence[int]) -> list[IndexItem | None]:
        items = {row["id"]: from_entity(row) for row in self._get([int(item) for item in ids], FIELDS)}
        return [items.get(int(item)) for item in ids]

    def vectors(self, ids: Ids, space: str) -> Floats:
        name, wanted = self._field(space), np.asarray(ids, np.int64).reshape(-1).tolist()
        rows = np.empty((len(wanted), self.meta.width(space)), np.float32)
        step = self._page_rows(self.limits.page_rows, space)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            vectors = {row["id"]: row[name] for row in self._get(part, (name,))}
            for n, item in enumerate(part, start):
                if item not in vectors:
                    raise FineSightError(f"The index has no item {item}.")
                rows[n] = vectors[item]
        return rows

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        name = self._field(space)
        for page in self._pages((name,), self._page_rows(rows, space)):
            yield np.array([row["id"] for row in page], np.int64), np.array([row[name] for row in page], np.float32)

    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        queries = np.ascontiguousarray(np.atleast_2d(queries), np.float32)
        return self._search(queries, k, self._field(space), int(self._facts(space).get("candidates", 0)))

    def facts(self) -> dict[str, object]:
        spaces = {space: self._facts(space) for space in self.meta.spaces}
        first = spaces[self.meta.spaces[0]]
        return {"store": "milvus", "items": len(self), **first, "spaces": spaces, "place": self.address.shown}

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

    def _field(self, space: str) -> str:
        return vector_field(self.check_space(space))

    def _facts(self, space: str) -> dict[str, Any]:
        """Return what was measured last. Another process may have measured since, so it is read now and then."""
        read_at, facts = self._held_facts
        if time.monotonic() - read_at > FACTS_SECONDS:
            text = self._call("describe_collection").get("properties", {}).get(FACTS)
            facts = json.loads(text or "{}")
            self._held_facts = time.monotonic(), facts
        return dict(facts.get(space, EXACT))

    def _page_rows(self, rows: int, space: str) -> int:
        """Return how many vectors of a space go into one page, at most ``rows``."""
        return max(1, min(rows, PAGE_BYTES // (4 * self.meta.width(space))))

    def _get(self, ids: list[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        return list(self._call("get", ids=ids, output_fields=["id", *fields], **STRONG)) if ids else []

    def _pages(self, fields: Sequence[str], rows: int) -> Iterator[list[dict[str, Any]]]:
        """Yield all entities by id, a page at a time."""
        pages = self._call("query_iterator", batch_size=rows, output_fields=["id", *fields], **STRONG)
        with milvus_errors(self.address), closing(pages):
            while page := pages.next():
                yield list(page)

    def _search(self, queries: Floats, k: int, field: str, effort: int) -> tuple[Floats, Ids]:
        """Search, and ask for more hits where so many are equal that those with the smallest ids may be missing."""
        scores, ids = np.full((len(queries), k), -1, np.float32), np.full((len(queries), k), -1, np.int64)
        left, limit = np.arange(len(queries)), min(MAX_HITS, k + TIES)
        while len(left):
            answers = self._call(
                "search",
                data=list(queries[left]),
                anns_field=field,
                limit=limit,
                output_fields=["id"],
                search_params={"metric_type": "IP", "params": {"ef": max(effort, limit)} if effort else {}},
                **STRONG,
            )
            unclear = []
            for n, hits in zip(left.tolist(), answers, strict=True):
                products = np.array([hit["distance"] for hit in hits], np.float64)
                if limit < MAX_HITS and len(hits) == limit and products[k - 1] - products[-1] < EQUAL:
                    unclear.append(n)
                best, items = sort_hits(products, np.array([hit["id"] for hit in hits], np.int64))
                scores[n, : len(hits)] = np.minimum(best[:k], 1)
                ids[n, : len(hits)] = items[:k]
            left, limit = np.array(unclear, np.int64), min(MAX_HITS, 4 * limit)
        return scores, ids

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, batch: NewItems) -> None:
        items = self.check_batch(batch)
        if not items:
            return
        self._remove_other_ids(items)
        rows = [
            to_entity(item, {vector_field(space): batch.vectors[space][n] for space in self.meta.spaces})
            for n, item in enumerate(items)
        ]
        step = max(1, REQUEST_BYTES // (4 * sum(map(self.meta.width, self.meta.spaces))))
        for start in range(0, len(rows), step):
            self._call("upsert", rows[start : start + step])

    def remove(self, ids: Ids) -> None:
        wanted, step = np.asarray(ids, np.int64).tolist(), self.limits.page_rows
        for start in range(0, len(wanted), step):
            self._call("delete", ids=wanted[start : start + step])

    def finish(self) -> None:
        """Wait until a server has built its graph, and measure the recall of the graph."""
        self._call("flush")
        kinds = {space: self._wait_for_graph(vector_field(space)) for space in self.meta.spaces}
        facts = {space: self._measure(space, kind) for space, kind in kinds.items()}
        self._call("alter_collection_properties", {FACTS: json.dumps(facts)})
        self._held_facts = time.monotonic(), facts

    def _remove_other_ids(self, items: Sequence[IndexItem]) -> None:
        """Remove entities that have the path of a new item under another id. This comes first: a path must not be there
        twice, whenever the process is killed."""
        owners = {path_to_text(item.path): item.id for item in items}
        keys = [path_id(item.path) for item in items]
        there = self._call("query", filter=f"path_key in {keys}", output_fields=["id", "path"], **STRONG)
        stale = [row["id"] for row in there if owners.get(row["path"], row["id"]) != row["id"]]
        if stale:
            self.remove(np.array(stale, np.int64))

    def _wait_for_graph(self, field: str) -> str:
        """Return the kind of structure of a field as soon as no row is pending."""
        deadline = time.monotonic() + BUILD_SECONDS
        while True:
            described = self._call("describe_index", field)
            if not int(described.get("pending_index_rows", 0)) or time.monotonic() > deadline:
                return str(described["index_type"])
            time.sleep(0.5)

    def _measure(self, space: str, kind: str) -> dict[str, Any]:
        """Return how a space is searched: with more candidates, step by step, until enough is found."""
        if kind in ("FLAT", "BRUTE_FORCE") or not len(self):
            return dict(EXACT)
        queries = self._sample_queries(space)
        best = self._exact_scores(queries, structures.K, space)
        facts: dict[str, Any] = {}
        for effort in EFFORTS:
            scores = self._search(queries, structures.K, vector_field(space), effort)[0]
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
        ids = np.array([row["id"] for page in self._pages((), self.limits.page_rows) for row in page], np.int64)
        some = np.sort(np.random.default_rng(0).choice(ids, min(QUERY_IMAGES, len(ids)), replace=False))
        vectors = self.vectors(some, space)
        return structures.sample_queries(vectors, np.ones(len(vectors), bool), structures.RECALL_QUERIES)

    def _exact_scores(self, queries: Floats, k: int, space: str) -> Floats:
        """Return the k best scores of each query, reading every vector once. (n, D) -> (n, k)"""
        best = np.full((len(queries), k), -1, np.float32)
        for _, vectors in self.blocks(space):
            best = -np.sort(-np.concatenate([best, queries @ vectors.T], axis=1), axis=1)[:, :k]
        return best
