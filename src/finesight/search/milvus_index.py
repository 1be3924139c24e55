"""An index in a Milvus collection: all of it is there, so any machine that reaches the server can search it.

One entity for each image, its id the primary key: adding an image again takes its place, so a build that was killed and
runs again doubles nothing. Milvus commits what one request brings as a whole; a batch larger than a request may be goes
in several. An image that takes the place of its former self is deleted and inserted in one request, which a Milvus Lite
that is killed meanwhile may have done half: then the image is missing, and the next update adds it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from finesight.errors import FineSightError
from finesight.features.encoder_folder import encoder_folder, fingerprint
from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import Ids, Index, IndexMeta, Item, Known, NewItems
from finesight.search.fitting import AIM, RECALL, SAMPLE, K
from finesight.search.image_files import path_id
from finesight.search.milvus_client import Address, connections, explained
from finesight.search.milvus_entities import (
    EQUAL,
    FIELDS,
    META,
    STRONG,
    entity,
    field_of,
    item_of,
    make_collection,
    path_of,
    settled,
    text_of,
)

FORMAT = 1
FACTS = "finesight.facts"  # a property of the collection
EFFORTS = (64, 128, 256, 512, 1024, 2048)  # candidates of a graph, tried in turn until the recall is reached
POOL = 3000  # images that the queries of the recall are taken from
REQUEST_BYTES = 32 * 2**20  # half of what a server takes by default
PAGE = 4096  # entities asked for at a time …
PAGE_BYTES = 32 * 2**20  # … unless their vectors are more than so much
MOST = 16_384  # hits that Milvus gives
TIES = 16  # hits asked for beyond k: of equal ones the smallest ids count
FACTS_SECONDS = 10.0
BUILD_SECONDS = 3600.0  # for a server to build its graph


class MilvusIndex(Index):
    """See the module. ``kind`` is FLAT (all is looked at: a file) or HNSW (a server), for each at its making."""

    def __init__(self, address: Address, client: Any) -> None:
        self.address, self._client, self._open = address, client, True
        self._told: tuple[float, dict[str, Any]] = (float("-inf"), {})
        with explained(address):
            if not client.has_collection(address.collection):
                raise FineSightError(f"There is no index {address.shown}. Make one with `finesight index`.")
            self.meta = self._read_meta()
            client.load_collection(address.collection)

    @classmethod
    def open(cls, where: str) -> Self:
        """One that is there already."""
        address = Address.parse(where)
        if address.lite and not os.path.exists(address.uri):
            raise FineSightError(f"There is no index {address.shown}. Make one with `finesight index`.")
        return cls._with(address, connections.open(address))

    @classmethod
    def create(cls, where: str, meta: IndexMeta, encoder: Path, *, kind: str = "") -> Self:
        """A new and empty one. A collection holds no files: the encoder stays where it is, in the run."""
        address = Address.parse(where)
        client = connections.open(address)
        try:
            with explained(address):
                if client.has_collection(address.collection):
                    raise FineSightError(f"There is an index {address.shown} already.")
                make_collection(client, address, meta, kind or ("FLAT" if address.lite else "HNSW"))
        except BaseException:
            connections.close(address, client)
            raise
        return cls._with(address, client)

    @classmethod
    def exists(cls, where: str) -> bool:
        address = Address.parse(where)
        if address.lite and not os.path.exists(address.uri):
            return False
        client = connections.open(address)
        try:
            with explained(address):
                return bool(client.has_collection(address.collection))
        finally:
            connections.close(address, client)

    @classmethod
    def _with(cls, address: Address, client: Any) -> Self:
        try:
            return cls(address, client)
        except BaseException:
            connections.close(address, client)
            raise

    def _read_meta(self) -> IndexMeta:
        """Kept twice: a Milvus Lite forgets descriptions, and a server may be told to forget properties."""
        told = self._client.describe_collection(self.address.collection)
        text = told.get("properties", {}).get(META) or told.get("description", "")
        try:
            meta = IndexMeta.model_validate_json(text)
        except ValidationError:
            raise FineSightError(
                f"The collection {self.address.shown} is no FineSight index, or one of another version: give another "
                "name."
            ) from None
        if meta.format != FORMAT:
            raise FineSightError(
                f"The index {self.address.shown} has format {meta.format}; this version reads {FORMAT}."
            )
        return meta

    # --- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with explained(self.address):
            counted = self._client.query(self.address.collection, filter="", output_fields=["count(*)"], **STRONG)
        return int(counted[0]["count(*)"])

    def known(self) -> Known:
        rows = [
            (path_of(row["path"]), row["id"], row["bytes"], row["mtime_ns"])
            for page in self._pages(("path", "bytes", "mtime_ns"), PAGE)
            for row in page
        ]
        paths, ids, sizes, mtimes = zip(*sorted(rows), strict=True) if rows else ((), (), (), ())
        return Known(
            np.array(ids, np.int64), np.array(paths, np.str_), np.array(sizes, np.int64), np.array(mtimes, np.int64)
        )

    def item(self, item: int) -> Item | None:
        return self.items([item])[0]

    def items(self, ids: Sequence[int]) -> list[Item | None]:
        """In one request, which over a network is what takes time."""
        found = {row["id"]: item_of(row) for row in self._get([int(item) for item in ids], FIELDS)}
        return [found.get(int(item)) for item in ids]

    def vectors(self, ids: Ids, space: str) -> Floats:
        name, wanted = self._field(space), np.asarray(ids, np.int64).reshape(-1).tolist()
        rows = np.empty((len(wanted), self.meta.dimension), np.float32)
        step = self._page(PAGE)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            found = {row["id"]: row[name] for row in self._get(part, (name,))}
            for n, item in enumerate(part, start):
                if item not in found:
                    raise FineSightError(f"The index has no item {item}.")
                rows[n] = found[item]
        return rows

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        """By id."""
        name = self._field(space)
        for page in self._pages((name,), self._page(rows)):
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
        if space not in self.meta.spaces:
            raise FineSightError(f"The index has no features {space!r}. It has: {', '.join(self.meta.spaces)}.")
        return field_of(space)

    def _facts(self, space: str) -> dict[str, Any]:
        """As measured last, perhaps by another process: asked for now and then, not at every search."""
        asked, facts = self._told
        if time.monotonic() - asked > FACTS_SECONDS:
            with explained(self.address):
                told = self._client.describe_collection(self.address.collection).get("properties", {}).get(FACTS)
            facts = json.loads(told or "{}")
            self._told = time.monotonic(), facts
        return dict(facts.get(space, {"kind": "exact", "recall_at_10": 1.0}))

    def _page(self, rows: int) -> int:
        return max(1, min(rows, PAGE_BYTES // (4 * self.meta.dimension)))

    def _get(self, ids: list[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        if not ids:
            return []
        with explained(self.address):
            return list(self._client.get(self.address.collection, ids=ids, output_fields=["id", *fields], **STRONG))

    def _pages(self, fields: Sequence[str], rows: int) -> Iterator[list[dict[str, Any]]]:
        """All entities by id, a page at a time."""
        with explained(self.address):
            pages = self._client.query_iterator(
                self.address.collection, batch_size=rows, output_fields=["id", *fields], **STRONG
            )
            try:
                while page := pages.next():
                    yield list(page)
            finally:
                pages.close()

    def _search(self, queries: Floats, k: int, field: str, effort: int) -> tuple[Floats, Ids]:
        """Asked again, and for more, where so many are equal that which of them have the smallest ids is not seen."""
        scores, ids = np.full((len(queries), k), -1, np.float32), np.full((len(queries), k), -1, np.int64)
        left, limit = np.arange(len(queries)), min(MOST, k + TIES)
        while len(left):
            answers = self._ask(queries[left], limit, field, max(effort, limit) if effort else 0)
            unclear = []
            for n, hits in zip(left.tolist(), answers, strict=True):
                if limit < MOST and len(hits) == limit and hits[k - 1][0] - hits[-1][0] < EQUAL:
                    unclear.append(n)
                best = settled(hits)[:k]
                scores[n, : len(best)] = [min(score, 1.0) for score, _ in best]
                ids[n, : len(best)] = [item for _, item in best]
            left, limit = np.array(unclear, np.int64), min(MOST, 4 * limit)
        return scores, ids

    def _ask(self, queries: Floats, limit: int, field: str, effort: int) -> list[list[tuple[float, int]]]:
        with explained(self.address):
            answers = self._client.search(
                self.address.collection,
                data=list(queries),
                anns_field=field,
                limit=limit,
                output_fields=["id"],
                search_params={"metric_type": "IP", "params": {"ef": effort} if effort else {}},
                **STRONG,
            )
        return [[(float(hit["distance"]), int(hit["id"])) for hit in hits] for hits in answers]

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, batch: NewItems) -> None:
        items = self.checked(batch)
        if not items:
            return
        self._forget_other_ids(items)
        rows = [
            entity(item, {field_of(space): batch.vectors[space][n] for space in self.meta.spaces})
            for n, item in enumerate(items)
        ]
        step = max(1, REQUEST_BYTES // (4 * self.meta.dimension * len(self.meta.spaces)))
        with explained(self.address):
            for start in range(0, len(rows), step):
                self._client.upsert(self.address.collection, rows[start : start + step])

    def remove(self, ids: Ids) -> None:
        wanted = np.asarray(ids, np.int64).tolist()
        with explained(self.address):
            for start in range(0, len(wanted), PAGE):
                self._client.delete(self.address.collection, ids=wanted[start : start + PAGE])

    def finish(self) -> None:
        """A server builds its graph by itself; it is waited for, and its recall measured against looking at all."""
        with explained(self.address):
            self._client.flush(self.address.collection)
            kinds = {space: self._wait_for(field_of(space)) for space in self.meta.spaces}
        facts = {space: self._fitted(space, kind) for space, kind in kinds.items()}
        with explained(self.address):
            self._client.alter_collection_properties(self.address.collection, {FACTS: json.dumps(facts)})
        self._told = time.monotonic(), facts

    def _forget_other_ids(self, items: Sequence[Item]) -> None:
        """A path is one item. Before the new ones come: a path must not be there twice, whenever this is killed."""
        owners = {text_of(item.path): item.id for item in items}
        keys = [path_id(item.path) for item in items]
        with explained(self.address):
            there = self._client.query(
                self.address.collection, filter=f"path_key in {keys}", output_fields=["id", "path"], **STRONG
            )
        stale = [row["id"] for row in there if owners.get(row["path"], row["id"]) != row["id"]]
        if stale:
            self.remove(np.array(stale, np.int64))

    def _wait_for(self, field: str) -> str:
        """-> the kind of its structure"""
        deadline = time.monotonic() + BUILD_SECONDS
        while True:
            told = self._client.describe_index(self.address.collection, field)
            if not int(told.get("pending_index_rows", 0)) or time.monotonic() > deadline:
                return str(told["index_type"])
            time.sleep(0.5)

    def _fitted(self, space: str, kind: str) -> dict[str, Any]:
        """More candidates for every search until enough is found."""
        if kind in ("FLAT", "BRUTE_FORCE") or not len(self):
            return {"kind": "exact", "recall_at_10": 1.0}
        queries = self._sample(space)
        best = self._exact(queries, K, space)
        facts: dict[str, Any] = {}
        for effort in EFFORTS:
            found = self._search(queries, K, field_of(space), effort)[0]
            share = structures.least_recall(found, best)
            facts = {"kind": kind.lower(), "recall_at_10": round(share, 4)}
            facts |= {"recall_queries": len(queries), "candidates": effort}
            if share >= AIM:
                break
        if facts["recall_at_10"] < RECALL:
            raise FineSightError(
                f"The graph of {self.address.shown} finds {facts['recall_at_10']:.3f} of the ten nearest by {space}, "
                f"less than {RECALL}: make the index anew with a larger M on the server."
            )
        return facts

    def _sample(self, space: str) -> Floats:
        """Queries that people may ask, made of some of the images."""
        ids = np.array([row["id"] for page in self._pages((), PAGE) for row in page], np.int64)
        some = np.sort(np.random.default_rng(0).choice(ids, min(POOL, len(ids)), replace=False))
        vectors = self.vectors(some, space)
        return structures.sample_queries(vectors, np.ones(len(vectors), bool), SAMPLE)

    def _exact(self, queries: Floats, k: int, space: str) -> Floats:
        """The k best scores of each, all vectors having been read once. (n, D) -> (n, k)"""
        best = np.full((len(queries), k), -1, np.float32)
        for _, vectors in self.blocks(space):
            best = -np.sort(-np.concatenate([best, queries @ vectors.T], axis=1), axis=1)[:, :k]
        return best
