"""The fields of a Milvus collection that holds an index, and conversion of items to entities and back."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from finesight.features.types import Floats
from finesight.search import structures
from finesight.search.base import IndexItem, IndexMeta
from finesight.search.image_files import path_id
from finesight.search.milvus_client import Address, pymilvus

META = "finesight.meta"  # a property of the collection
FIELDS = ("path", "bytes", "mtime_ns", "width", "height", "mask", "mask_width")
EQUAL = 1e-6  # scores that differ by less are equal: sums in another order
STRONG: dict[str, Any] = {"consistency_level": "Strong"}  # a search sees what was added before it


def vector_field(space: str) -> str:
    return "vector_" + space.replace("-", "_")


def make_collection(client: Any, address: Address, meta: IndexMeta, kind: str) -> None:
    types = pymilvus().DataType
    text = meta.model_dump_json()
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=text)
    schema.add_field("id", types.INT64, is_primary=True)
    for name in ("path", "mask"):
        schema.add_field(name, types.VARCHAR, max_length=65_535)
    for name in ("path_key", "bytes", "mtime_ns", "width", "height", "mask_width"):
        schema.add_field(name, types.INT64)
    params = client.prepare_index_params()
    for space in meta.spaces:
        schema.add_field(vector_field(space), types.FLOAT_VECTOR, dim=meta.dimension)
        effort = {"M": structures.LINKS, "efConstruction": structures.BUILD_EFFORT} if kind == "HNSW" else {}
        params.add_index(vector_field(space), index_type=kind, metric_type="IP", params=effort)
    client.create_collection(address.collection, schema=schema, index_params=params, properties={META: text}, **STRONG)


def sort_hits(hits: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return hits with the best first, and of equal ones the smallest id first, as ``nearest.rank`` does."""
    run, before = 0, float("inf")
    keyed = []
    for score, item in sorted(hits, key=lambda hit: -hit[0]):
        run += before - score >= EQUAL
        before = score
        keyed.append((run, item))
    return list(
        zip(sorted((score for score, _ in hits), reverse=True), (item for _, item in sorted(keyed)), strict=True)
    )


def to_entity(item: IndexItem, vectors: dict[str, Floats]) -> dict[str, Any]:
    mask = np.ascontiguousarray(item.mask, np.float32)
    paths = {"path": path_to_text(item.path), "path_key": path_id(item.path)}
    masks = {"mask": base64.b64encode(mask.tobytes()).decode(), "mask_width": mask.shape[1]}
    return {**vars(item), **paths, **masks, **vectors}


def from_entity(row: dict[str, Any]) -> IndexItem:
    cells = np.frombuffer(base64.b64decode(row["mask"]), np.float32).reshape(-1, row["mask_width"])
    return IndexItem(
        row["id"], text_to_path(row["path"]), row["bytes"], row["mtime_ns"], row["width"], row["height"], cells
    )


def path_to_text(path: str) -> str:
    """Return a path as UTF-8, which Milvus wants. Other names become / and digits: no relative path begins so."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "/" + os.fsencode(path).hex()
    return path


def text_to_path(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text[1:])) if text.startswith("/") else text
