"""The collections of an index in a Milvus server, one for each space: make, fill, read and drop them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import IndexItem, IndexMeta
from finesight.search.milvus_client import Address, add_item_fields, pymilvus, to_entity
from finesight.search.milvus_index import REQUEST_BYTES, Hits
from finesight.search.milvus_manifest import Manifest

GRAPH_ROWS = 1024  # Milvus compares all vectors of a smaller segment
BUILD_SECONDS = 6 * 3600.0  # for the server to build its graphs
LOAD_SECONDS = 600.0  # and to read a collection into memory
THREADS = 4

Rows = list[dict[str, Any]]


class Spaces:
    """Asks for what a manifest names. Raises what the library raises."""

    def __init__(self, client: Any, address: Address, meta: IndexMeta, timeout: float) -> None:
        self.client, self.address, self.meta, self.timeout = client, address, meta, timeout

    def make(self, token: str, kind: str) -> dict[str, str]:
        """Make and load an empty collection for each space, all of them or none; return their names."""
        names = {space: f"{self.address.collection}__fs_{token}_{n}" for n, space in enumerate(self.meta.spaces)}
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda space: self._make(names[space], space, kind), names))
        except BaseException:
            self.drop(names.values())
            raise
        return names

    def _make(self, name: str, space: str, kind: str) -> None:
        types = pymilvus().DataType
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("pk", types.INT64, is_primary=True)
        schema.add_field("id", types.INT64)
        if space == self.meta.spaces[0]:
            add_item_fields(schema)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=self.meta.width(space))
        self.client.create_collection(name, schema=schema, timeout=self.timeout)
        params = self.client.prepare_index_params()
        effort = {"M": structures.LINKS, "efConstruction": structures.BUILD_EFFORT} if kind == "HNSW" else {}
        params.add_index("vector", index_type=kind, metric_type="IP", params=effort)
        self.client.create_index(name, params, timeout=self.timeout)
        self._load(name)

    def load(self, now: Manifest) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._load, now.names))

    def _load(self, name: str) -> None:
        self.client.load_collection(name, timeout=LOAD_SECONDS)

    def drop(self, names: Any) -> None:
        for name in names:
            self.client.drop_collection(name, timeout=self.timeout)

    def drop_unnamed(self, now: Manifest) -> None:
        """Drop collections of an index that was never finished being made."""
        pattern = re.compile(re.escape(self.address.collection) + r"__fs_[0-9a-f]{8}_\d+")
        there = self.client.list_collections(timeout=self.timeout)
        self.drop([name for name in there if pattern.fullmatch(name) and name not in now.names])

    # --- reading --------------------------------------------------------------------------------------------------

    def query(self, now: Manifest, space: str, condition: str, fields: Sequence[str]) -> Rows:
        return list(
            self.client.query(
                now.collections[space],
                filter=f"{condition} and {now.visible}",
                output_fields=["pk", "id", *fields],
                timeout=self.timeout,
                **now.consistency,
            )
        )

    def of_ids(self, now: Manifest, space: str, ids: list[int], fields: Sequence[str], step: int) -> Rows:
        parts = [ids[start : start + step] for start in range(0, len(ids), step)]
        return [row for part in parts for row in self.query(now, space, f"id in {part}", fields)]

    def pages(self, now: Manifest, space: str, fields: Sequence[str], step: int) -> Iterator[Rows]:
        """Yield all rows by key, a page at a time."""
        for start in range(0, now.rows, step):
            page = self.query(now, space, f"pk >= {start} and pk < {start + step}", fields)
            if page:
                yield sorted(page, key=lambda row: int(row["pk"]))

    def nearest(self, now: Manifest, space: str, queries: Floats, limit: int, options: dict[str, Any]) -> list[Hits]:
        answers = self.client.search(
            now.collections[space],
            data=list(queries),
            anns_field="vector",
            limit=limit,
            filter=now.visible,
            output_fields=["id"],
            search_params=options,
            timeout=self.timeout,
            **now.consistency,
        )
        return [
            (
                np.array([hit["entity"]["id"] for hit in hits], np.int64),
                np.array([hit["distance"] for hit in hits], np.float32),
            )
            for hits in answers
        ]

    # --- writing --------------------------------------------------------------------------------------------------

    def send(self, now: Manifest, items: Sequence[IndexItem], vectors: dict[str, Floats]) -> None:
        """Insert rows under the keys that follow those of a manifest: nobody sees them yet."""
        for space in self.meta.spaces:
            whole = space == self.meta.spaces[0]
            rows = [
                {"pk": now.rows + n, **(to_entity(item, {}) if whole else {"id": item.id}), "vector": vector}
                for n, (item, vector) in enumerate(zip(items, vectors[space], strict=True))
            ]
            step = max(1, REQUEST_BYTES // (4 * self.meta.width(space)))
            for start in range(0, len(rows), step):  # the library must not send rows again by itself
                self.client.insert(now.collections[space], rows[start : start + step], retry_times=0)

    def delete(self, now: Manifest, keys: Sequence[int]) -> None:
        for name in now.names:
            self.client.delete(name, ids=list(keys), timeout=self.timeout)

    def build_graphs(self, now: Manifest) -> dict[str, str]:
        """Wait until all rows are in graphs that are searched; return the kind of structure of each space."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda name: self.client.flush(name, timeout=BUILD_SECONDS), now.names))
            return dict(zip(now.collections, pool.map(self._wait_for_graph, now.names), strict=True))

    def _wait_for_graph(self, name: str) -> str:
        deadline = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < deadline:
            described = self.client.describe_index(name, "vector", timeout=self.timeout)
            loaded = self.client.list_loaded_segments(name, timeout=self.timeout)
            is_ready = all(segment.index_id > 0 for segment in loaded if segment.num_rows >= GRAPH_ROWS)
            if is_ready and not int(described.get("pending_index_rows", 0)):
                return str(described["index_type"])
            time.sleep(0.2)
        raise FineSightError(f"The Milvus server at {self.address.shown} has not built its graph in time.")
