"""Connect to a Milvus server or a Milvus Lite file, explain what goes wrong, and convert items to entities and back."""

from __future__ import annotations

import base64
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.io.lock import Busy, acquire
from finesight.search import structures
from finesight.search.base import Ids, IndexItem, IndexMeta
from finesight.search.image_files import path_id

PORT = 19530
CONNECT_TIMEOUT = 5.0  # seconds, for a server to accept a connection
TIMEOUT = 60.0  # seconds, of each request after that: a server that starts anew is waited for
LITE = "finesight"  # the collection of a file
TOKEN = "FINESIGHT_MILVUS_TOKEN"
EXAMPLE = "milvus://host:19530/collection"
META = "finesight.meta"  # a property of the collection
FIELDS = ("path", "bytes", "mtime_ns", "width", "height", "mask", "mask_width")
EQUAL = 1e-6  # scores that differ by less are equal: sums in another order
STRONG: dict[str, Any] = {"consistency_level": "Strong"}  # a search sees what was added before it
RETRY_SECONDS = 0.2
_PASSING = re.compile("Fail connecting|not loaded|not fully loaded|[Nn]o available|not available|not ready|UNAVAILABLE")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


@dataclass(frozen=True)
class Address:
    """The address of a collection. ``shown`` has no password in it."""

    uri: str
    collection: str
    shown: str
    lite: bool
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, where: str) -> Address:
        """Parse ``milvus://[user:password@]host[:port]/collection[?token=…]``, ``milvuss://…`` or ``FILE.db``."""
        if not where.startswith(("milvus://", "milvuss://")):
            path = os.path.abspath(os.path.expanduser(where))
            return cls(path, LITE, path, lite=True)
        try:
            parts = urlsplit(where)
            host, port = parts.hostname or "", parts.port or PORT
        except ValueError:
            raise FineSightError(f"The address of the index is not one: it looks like {EXAMPLE}.") from None
        name = parts.path.strip("/")
        if not host or not _NAME.fullmatch(name):
            raise FineSightError(
                f"The index has no {'host' if not host else 'collection'} in its address: it looks like {EXAMPLE}, the "
                "collection being letters, digits and underscores."
            )
        secret = parse_qs(parts.query).get("token", [os.environ.get(TOKEN, "")])[0]
        if parts.username:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        net = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        scheme = "https" if parts.scheme == "milvuss" else "http"
        return cls(f"{scheme}://{net}", name, f"{parts.scheme}://{net}/{name}", lite=False, token=secret)


class Connections:
    """Count the users of each Milvus Lite file in this process, and end it with the last so that others may open it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()

    def open(self, address: Address, timeout: float = TIMEOUT) -> Any:
        """Return a ``MilvusClient``; raise ``FineSightError`` if nothing answers or the file is in use."""
        library = pymilvus()
        with self._lock, milvus_errors(address):
            if not address.lite:
                _require_server(address)
                return library.MilvusClient(address.uri, token=address.token, timeout=timeout)
            if not self._users[address.uri]:
                _require_free(address)
            try:
                Path(address.uri).parent.mkdir(parents=True, exist_ok=True)
                client = library.MilvusClient(address.uri, timeout=timeout)
            except OSError as error:
                raise FineSightError(f"The index {address.shown} cannot be made: {error.strerror or error}.") from error
            self._users[address.uri] += 1
            return client

    def close(self, address: Address, client: Any) -> None:
        with self._lock:
            client.close()
            if not address.lite:
                return
            self._users[address.uri] -= 1
            if self._users[address.uri] <= 0:
                from milvus_lite.server_manager import server_manager_instance  # type: ignore[import-untyped]

                server_manager_instance.release_server(address.uri)


connections = Connections()


def pymilvus() -> Any:
    """Import the library and silence its log: whatever it logs is raised too."""
    try:
        import pymilvus as library
    except ImportError:
        raise FineSightError("A Milvus index needs pymilvus: pip install finesight[milvus]") from None
    for name in ("pymilvus", "milvus_lite"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return library


def milvus_exceptions() -> tuple[type[Exception], ...]:
    """Return what the library raises if a server fails or cannot be reached."""
    import grpc  # type: ignore[import-untyped]
    from pymilvus.exceptions import MilvusException

    return MilvusException, grpc.RpcError


@contextmanager
def milvus_errors(address: Address) -> Iterator[None]:
    """Turn errors of Milvus into a ``FineSightError`` of one line."""
    try:
        yield
    except milvus_exceptions() as error:
        if address.lite and find_spec("milvus_lite") is None:
            raise FineSightError("A Milvus Lite file needs milvus-lite: pip install finesight[milvus]") from None
        said = [getattr(one, "details", str)() for one in (error.__cause__, error)]  # why, if the server tells
        words = " ".join(str(said[0] or said[1] or getattr(error, "message", error)).split())
        raise FineSightError(f"The Milvus index {address.shown} cannot be used: {words[:300]}") from error


class PatientClient:
    """A ``MilvusClient`` whose requests wait for a server that starts anew and for a connection that comes back.

    Not those that insert: sent again, rows would be there twice.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self._client, self._timeout = client, timeout

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return method if name == "insert" else partial(self._wait, method)

    def alloc_timestamp(self) -> int:
        """Return a time of the server after all that it has answered, 0 if it does not tell."""
        connection = self._client._get_connection()
        return int(self._wait(connection.alloc_timestamp, timeout=self._timeout))

    def _wait(self, method: Any, *args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + (options.get("timeout") or self._timeout)
        while True:
            try:
                return method(*args, **options)
            except milvus_exceptions() as error:
                if not _PASSING.search(str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _require_server(address: Address) -> None:
    """Raise ``FineSightError`` if no server accepts connections; the library would try for long."""
    parts = urlsplit(address.uri)
    try:
        socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise FineSightError(
            f"There is no Milvus server at {address.shown}: {error.strerror or error}. Start it, or give another index."
        ) from None


def _require_free(address: Address) -> None:
    """Raise ``FineSightError`` if another process has the file open: Milvus Lite allows one, to read as to write."""
    folder = Path(address.uri)
    if folder.is_file():
        raise FineSightError(f"{folder} is a file, and not one of Milvus Lite: give --index another name.")
    if not (folder / "LOCK").exists():
        return  # new
    try:
        acquire(folder / "LOCK").close()
    except Busy:
        raise FineSightError(
            f"Another process has the index {folder} open: Milvus Lite lets one in at a time. Wait for it to end, or "
            "use a Milvus server."
        ) from None
    except OSError:
        return  # Milvus Lite itself says what is wrong


# --- entities ---------------------------------------------------------------------------------------------------------


def vector_field(space: str) -> str:
    return "vector_" + space.replace("-", "_")


def add_item_fields(schema: Any) -> None:
    """Add the fields of ``to_entity`` but its id."""
    types = pymilvus().DataType
    for name in ("path", "mask"):
        schema.add_field(name, types.VARCHAR, max_length=65_535)
    for name in ("path_key", "bytes", "mtime_ns", "width", "height", "mask_width"):
        schema.add_field(name, types.INT64)


def make_collection(client: Any, address: Address, meta: IndexMeta, kind: str) -> None:
    types = pymilvus().DataType
    text = meta.model_dump_json()
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=text)
    schema.add_field("id", types.INT64, is_primary=True)
    add_item_fields(schema)
    params = client.prepare_index_params()
    for space in meta.spaces:
        schema.add_field(vector_field(space), types.FLOAT_VECTOR, dim=meta.width(space))
        effort = {"M": structures.LINKS, "efConstruction": structures.BUILD_EFFORT} if kind == "HNSW" else {}
        params.add_index(vector_field(space), index_type=kind, metric_type="IP", params=effort)
    client.create_collection(address.collection, schema=schema, index_params=params, properties={META: text}, **STRONG)


def sort_hits(scores: NDArray[np.float64], ids: Ids) -> tuple[NDArray[np.float64], Ids]:
    """Return scores and ids with the best first, and of equal ones the smallest id first, as ``nearest.rank`` does."""
    order = np.argsort(-scores)
    scores, ids = scores[order], ids[order]
    run = np.cumsum(np.diff(scores, prepend=scores[:1]) <= -EQUAL)  # counts up where scores are not equal
    return scores, ids[np.lexsort((ids, run))]


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
    return "/" + os.fsencode(path).hex() if re.search("[\ud800-\udfff]", path) else path


def text_to_path(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text[1:])) if text.startswith("/") else text
