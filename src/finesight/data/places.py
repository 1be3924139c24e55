"""Images that are not files of their own: objects behind an address, members of a tar file, rows of a Parquet file.

A path stands for each of them, so that everything that takes paths takes them too:

    /s3:/bucket/birds/1.jpg         s3://bucket/birds/1.jpg (also gs, hf, http and https), by fsspec
    /data/birds-000.tar::1.jpg      a member of a tar file, read where it lies
    /data/birds.parquet::17         a row of a Parquet file

Nothing is unpacked or copied: the bytes of an image are read when it is decoded.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from finesight.data.decode import UnreachableFile, os_reason
from finesight.errors import FineSightError, first_line
from finesight.io.atomic import write_atomic

SCHEMES = ("s3", "gs", "hf", "https", "http")
TAR, PARQUET = ".tar", ".parquet"
_EXTRAS = {"s3": "s3", "gs": "gcs", "hf": "hub", "https": "https", "http": "https"}
_ADDRESS = re.compile(rf"^/?({'|'.join(SCHEMES)}):/{{1,2}}(?=[^/])")
_MEMBER = re.compile(rf"^(.+(?:{re.escape(TAR)}|{re.escape(PARQUET)}))::(.+)$", re.DOTALL)
_KNOWN: dict[str, tuple[int, int]] = {}  # size and version of addresses that were listed
_ROWS = threading.local()  # the row group that a thread read last


def is_address(text: str | Path) -> bool:
    """Return whether this is an address, or a path that stands for one."""
    return _ADDRESS.match(str(text)) is not None


def is_place(text: str | Path) -> bool:
    """Return whether this stands for something that is not a file of its own."""
    if "::" in str(text) and _MEMBER.match(str(text)) is not None:
        return not os.path.lexists(text)
    return is_address(text)


def address(text: str | Path) -> str:
    """Return the address that a path stands for; another path is returned as it is."""
    return _ADDRESS.sub(r"\1://", str(text))


def as_path(text: str) -> Path:
    """Return the path that stands for an address."""
    return Path(_ADDRESS.sub(r"/\1:/", text))


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message of asyncio says what no error says: a request that fails raises one, too."""
    return not record.getMessage().startswith("Task exception was never retrieved")


@lru_cache(maxsize=16)
def _filesystem(scheme: str) -> Any:
    import fsspec

    logging.getLogger("asyncio").addFilter(_is_news)
    try:
        return fsspec.filesystem(scheme)
    except ImportError as error:
        raise FineSightError(
            f"{scheme}:// needs another package ({error}): pip install 'finesight[{_EXTRAS[scheme]}]'."
        ) from error


def filesystem(text: str | Path) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    url = address(text)
    system = _filesystem(url.partition(":")[0])
    return system, system._strip_protocol(url)


@contextmanager
def reached(text: str | Path) -> Iterator[None]:
    """Turn whatever a storage says when it cannot be reached into ``UnreachableFile``."""
    try:
        yield
    except (UnreachableFile, FineSightError):
        raise
    except FileNotFoundError as error:
        why = error.__cause__  # fsspec says of a web server that it has no such file, whatever went wrong
        is_web = address(text).startswith("http")
        if not is_web or why is None or isinstance(why, FileNotFoundError) or getattr(why, "status", 0) == 404:
            raise UnreachableFile("no such file or directory") from None
        raise UnreachableFile(f"{address(text)}: {first_line(why)[:200]}") from None
    except OSError as error:
        raise UnreachableFile(
            os_reason(error) if error.errno else f"{address(text)}: {first_line(error)[:200]}"
        ) from None
    except Exception as error:  # each storage has errors of its own: botocore, aiohttp, google …
        raise UnreachableFile(f"{address(text)}: {first_line(error)[:200]}") from None


def remember(text: str, info: dict[str, Any]) -> None:
    """Keep what a listing says of an address, so that it need not be asked for each image."""
    _KNOWN[address(text)] = _version(info)


def _version(info: dict[str, Any]) -> tuple[int, int]:
    """Return the size, and a number that changes with the content: by the first of these that the storage tells."""
    marks = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "mtime", "updated")
    mark = next((str(info[name]) for name in marks if info.get(name)), str(info.get("size")))
    number = int.from_bytes(hashlib.blake2b(mark.encode(), digest_size=8).digest(), "big") >> 1
    return int(info.get("size") or 0), number


def stamp(text: str | Path) -> tuple[int, int]:
    """Return what tells whether a place changed: its size, and a time or a version. Raises ``UnreachableFile``."""
    if member := split_member(str(text)):
        size, version = stamp(member[0])
        if member[0].endswith(TAR):
            size = _member(*member)[1]
        return size, version
    if not is_address(text):
        try:
            status = os.stat(text)
        except OSError as error:
            raise UnreachableFile(os_reason(error)) from None
        return status.st_size, status.st_mtime_ns
    url = address(text)
    if url not in _KNOWN:
        with reached(url):
            system, path = filesystem(url)
            remember(url, system.info(path))
    return _KNOWN[url]


def split_member(text: str) -> tuple[str, str] | None:
    """Return the container and the member (or row) that a path names, or None if it names neither."""
    member = _MEMBER.match(text)
    return None if member is None else (member[1], member[2])


def read_place(text: str | Path, container: IO[bytes] | None = None, most: int | None = None) -> bytes:
    """Return the bytes of a place, which may lie in a ``container`` that is open already. Raises ``UnreachableFile``.

    So it does if more than ``most`` bytes would have to be held, if that is known before.
    """
    member = split_member(str(text))
    if member is None:
        if most is not None:
            _require_small(stamp(text)[0], most)
        return _read(str(text))
    file, name = member
    with reached(file):
        if file.endswith(PARQUET):
            return _row(file, int(name), container, most)
        start, size = _member(file, name)
        _require_small(size, most)
        if container is None:
            return _read(file, start, start + size)
        container.seek(start)
        return container.read(size)


def _require_small(size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise UnreachableFile(f"larger than {most / 2**20:.0f} MB")


def _read(text: str, start: int | None = None, end: int | None = None) -> bytes:
    with reached(text):
        if is_address(text):
            system, path = filesystem(text)
            return cast(bytes, system.cat_file(path, start=start, end=end))
        with open(text, "rb") as file:
            file.seek(start or 0)
            return file.read() if end is None else file.read(end - (start or 0))


def open_container(text: str | Path) -> IO[bytes]:
    """Open a tar or Parquet file, wherever it lies; parts of it are read as they are needed."""
    if not is_address(text):
        return open(text, "rb")
    system, path = filesystem(text)
    return cast(IO[bytes], io.BufferedReader(system.open(path, "rb"), 1 << 20))


def tar_members(container: str) -> dict[str, tuple[int, int]]:
    """Return where the members of a tar file begin, and their sizes, by name. Raises ``UnreachableFile``."""
    return _tar_members(container, stamp(container))


@lru_cache(maxsize=4096)
def _tar_members(container: str, version: tuple[int, int]) -> dict[str, tuple[int, int]]:
    if not is_address(container):
        return _read_headers(container)
    from finesight.data.store import default_cache_dir

    mark = hashlib.blake2b(f"{container} {version}".encode(), digest_size=16).hexdigest()
    kept = default_cache_dir() / "tars" / f"{mark}.json"  # headers lie all over the file: this is much of it to fetch
    with suppress(OSError, ValueError):
        return {name: (start, size) for name, (start, size) in json.loads(kept.read_text()).items()}
    found = _read_headers(container)
    with suppress(OSError):
        write_atomic(kept, json.dumps(found).encode())
    return found


def _read_headers(container: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    with reached(container):
        try:
            with open_container(container) as file, tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    if member.isfile():
                        found[member.name.removeprefix("./")] = member.offset_data, member.size
        except tarfile.TarError as error:
            raise UnreachableFile(f"a damaged tar file ({first_line(error)[:200]})") from None
    return found


def _member(container: str, name: str) -> tuple[int, int]:
    try:
        return tar_members(container)[name]
    except KeyError:
        raise UnreachableFile(f"no {name} in {Path(container).name}") from None


def image_column(schema: Any) -> str | None:
    """Return the name of the column with the images' bytes: plain bytes, or a table with them, as Hugging Face has."""
    import pyarrow as pa

    def holds(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(kind.field(i).name == "bytes" and holds(kind.field(i).type) for i in range(kind.num_fields))
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    names = [field.name for field in schema if holds(field.type)]
    return next((name for name in ("image", "img", "jpg", "png", "bytes") if name in names), (names or [None])[0])


def _row(container: str, row: int, given: IO[bytes] | None, most: int | None) -> bytes:
    import pyarrow.parquet as pq

    known = getattr(_ROWS, "group", None)
    version = stamp(container)
    if known is None or known[0] != (container, version) or not known[1] <= row < known[1] + len(known[2]):
        opened = open_container(container) if given is None else nullcontext(given)
        with opened as stream, pq.ParquetFile(stream) as file:
            first = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if first <= row < first + count:
                    name = image_column(file.schema_arrow)
                    if name is None:
                        raise UnreachableFile("no column with the bytes of images")
                    _require_small(file.metadata.row_group(group).total_byte_size, most)
                    values = file.read_row_group(group, columns=[name]).column(0).combine_chunks()
                    _ROWS.group = known = (container, version), first, values
                    break
                first += count
            else:
                raise UnreachableFile(f"no row {row} in {Path(container).name}")
    value = known[2][row - known[1]].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not content:
        raise UnreachableFile("the row has no image")
    return bytes(content)
