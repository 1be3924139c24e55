"""An index in one Milvus collection: in a Milvus Lite file, or as older versions made it in a server.

Each image is one entity, and its id is the primary key: adding an image again replaces it, so a build that was killed
and runs again doubles nothing. Milvus commits what one request brings as a whole; a batch larger than a request may be
goes in several. Replacing an image is a deletion and an insertion in one request, which a Milvus Lite that is killed
meanwhile may have done half: then the image is missing, and the next update adds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search.base import Ids, IndexItem, IndexMeta, ItemList, NewItems
from finesight.search.image_files import path_id
from finesight.search.milvus_client import (
    FIELDS,
    META,
    STRONG,
    Address,
    from_entity,
    make_collection,
    milvus_errors,
    path_to_text,
    text_to_path,
    to_entity,
    vector_field,
)
from finesight.search.milvus_index import EXACT, REQUEST_BYTES, Hits, MilvusIndex, MilvusLimits

FACTS = "finesight.facts"  # a property of the collection
FACTS_SECONDS = 10.0
BUILD_SECONDS = 3600.0  # for a server to build its graph


class MilvusFileIndex(MilvusIndex):
    """Wrap one collection that holds all spaces."""

    def __init__(self, address: Address, client: Any, limits: MilvusLimits) -> None:
        super().__init__(address, client, limits)
        self._held_facts: tuple[float, dict[str, Any]] = (float("-inf"), {})
        described = client.describe_collection(address.collection)
        # The meta is kept twice: Milvus Lite loses descriptions, some servers properties.
        text = described.get("properties", {}).get(META) or described.get("description", "")
        self.meta = IndexMeta.parse(text, f"The collection {address.shown}")
        client.load_collection(address.collection)

    @classmethod
    def prepare(cls, address: Address, client: Any, meta: IndexMeta, kind: str, limits: MilvusLimits) -> None:
        make_collection(client, address, meta, kind or "FLAT")

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

    def _get(self, ids: list[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        return list(self._call("get", ids=ids, output_fields=["id", *fields], **STRONG)) if ids else []

    def _pages(self, fields: Sequence[str], rows: int) -> Iterator[list[dict[str, Any]]]:
        """Yield all entities by id, a page at a time."""
        pages = self._call("query_iterator", batch_size=rows, output_fields=["id", *fields], **STRONG)
        with milvus_errors(self.address), closing(pages):
            while page := pages.next():
                yield list(page)

    def _ask(self, queries: Floats, k: int, space: str, effort: int) -> tuple[Floats, Ids]:
        return self._search(queries, k, space, effort)

    def _nearest(self, queries: Floats, limit: int, space: str, options: dict[str, Any], now: None) -> list[Hits]:
        asked = {"data": list(queries), "anns_field": self._field(space), "limit": limit, "search_params": options}
        answers = self._call("search", **asked, output_fields=["id"], **STRONG)
        return [
            (np.array([hit["id"] for hit in hits], np.int64), np.array([hit["distance"] for hit in hits], np.float32))
            for hits in answers
        ]

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
