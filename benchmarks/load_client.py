"""HTTP as the clients of ``benchmarks/load.py`` speak it: whole requests as bytes, over connections that stay open.

A library that builds and parses every request would keep the client busier than the server.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import urlencode

BOUNDARY = "finesight-load"
PATIENCE = 180.0  # seconds until a request that is not answered is an error
LOST = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in small letters) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """What is wrong with an error: it must be a sentence in JSON."""
        try:
            detail = self.json["detail"]
        except (ValueError, KeyError, TypeError):
            return f"{self.status} without a sentence: {self.body[:80]!r}"
        ends_well = isinstance(detail, str) and detail.endswith(".") and "Traceback" not in detail
        return "" if ends_well else f"{self.status} says {detail!r}"


@dataclass(frozen=True)
class Site:
    """Where a server is, and what a client needs to be let in."""

    host: str
    port: int
    cookie: str = ""

    def get(self, path: str, *, headers: dict[str, str] | None = None, **params: Any) -> bytes:
        """A GET request."""
        words = urlencode({name: value for name, value in params.items() if value is not None})
        return self.head("GET", f"{path}?{words}" if words else path, headers)

    def post(
        self, file: bytes, *, name: str = "query.jpg", headers: dict[str, str] | None = None, **fields: Any
    ) -> bytes:
        """A search by an upload."""
        body = form(file, name, **fields)
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Content-Length": str(len(body))}
        return self.head("POST", "/api/search", kind | (headers or {})) + body

    def head(self, method: str, target: str, headers: dict[str, str] | None = None) -> bytes:
        """The request line and the headers."""
        known = {"Host": f"{self.host}:{self.port}", "Accept": "*/*", "Date": formatdate(usegmt=True)}
        known |= {"Cookie": self.cookie} if self.cookie else {}
        known |= headers or {}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in known.items()), "", ""]
        return "\r\n".join(lines).encode()


def form(file: bytes, name: str, **fields: Any) -> bytes:
    """A multipart body with a file and short fields."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
        if value is not None
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return b"".join([*parts, head, file, f"\r\n--{BOUNDARY}--\r\n".encode()])


class Connection:
    """One connection to a server, opened when it is needed."""

    def __init__(self, site: Site, source: str = "") -> None:
        self._site, self._source = site, source
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            source = (self._source, 0) if self._source else None
            self._streams = await asyncio.open_connection(
                self._site.host, self._site.port, local_addr=source, limit=2**22
            )
        return self._streams

    async def ask(self, data: bytes) -> Answer:
        """Send a request and return its answer. On a connection that the server has closed meanwhile, once more."""
        is_old = self._streams is not None
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._ask(data)
        except LOST:
            self.close()
            if not is_old:
                raise
        async with asyncio.timeout(PATIENCE):
            return await self._ask(data)

    async def _ask(self, data: bytes) -> Answer:
        reader, writer = await self.open()
        writer.write(data)
        answer = await read_answer(reader)
        if answer.headers.get("connection", "") == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._streams is not None:
            with suppress(*LOST):
                self._streams[1].transport.abort()
            self._streams = None


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer; raise ``IncompleteReadError`` if the connection ends before it does."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    status = int(lines[0].split()[1])
    if headers.get("transfer-encoding", "") == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return Answer(status, headers, body)
    length = 0 if status in (204, 304) else int(headers.get("content-length", 0))
    return Answer(status, headers, await reader.readexactly(length))
