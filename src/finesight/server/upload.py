"""One picture and a few short fields out of a multipart body, counted while it arrives.

Nothing a client says about its upload is believed: the length is what was received, the type what the decoder finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import HTTPException
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from finesight.server.limits import GONE, Limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_PARTS = 12
FIELD_BYTES = 1000
ENVELOPE_BYTES = 64 * 1024  # of boundaries, part headers and fields, on top of the picture
HEADER_BYTES = 4096  # of one part
LINGER_SECONDS = 1.0  # for a refused body: a client that still sends would not see the answer
NAME_LENGTH = 120


@dataclass
class Upload:
    """What was in the form."""

    data: bytes | None = None  # of the part called ``file``
    name: str = ""
    fields: dict[str, str] = field(default_factory=dict)


async def read_upload(request: Request, limits: Limits, take: Callable[[int], None]) -> Upload:
    """The form of ``request``, or an HTTPException: 400, 408, 413, 415."""
    boundary = _boundary(request)
    most = limits.upload_bytes + ENVELOPE_BYTES
    if _declared(request) > most:
        await _linger(request, limits.upload_bytes)
        raise _too_large(limits)
    form = _Form(limits)
    try:
        parser = MultipartParser(boundary, form.callbacks())
    except FormParserError:
        raise _malformed() from None
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in _counted(request, most, limits):
                take(len(chunk))
                parser.write(chunk)
            parser.finalize()
    except TimeoutError:
        raise HTTPException(408, f"The upload took longer than {limits.upload_seconds:.0f} seconds.") from None
    except FormParserError:
        raise _malformed() from None
    except ClientDisconnect:
        raise HTTPException(GONE, "The client has left.") from None
    if not form.complete:
        raise _malformed()
    return form.upload


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "Send the picture as multipart/form-data, in a part called 'file'.")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 200:
        raise _malformed()
    return boundary


def _declared(request: Request) -> int:
    """What the client says it will send; 0 when it says nothing of use."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


async def _counted(request: Request, most: int, limits: Limits) -> AsyncIterator[bytes]:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most:
            await _linger(request, limits.upload_bytes)
            raise _too_large(limits)
        if chunk:
            yield chunk


async def _linger(request: Request, most: int) -> None:
    """Let a little more arrive and drop it: most clients read an answer only after they have sent everything."""
    dropped = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while dropped <= most:
                message = await request.receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _malformed() -> HTTPException:
    return HTTPException(400, "The form cannot be read: it is not well-formed multipart/form-data.")


def _too_large(limits: Limits) -> HTTPException:
    return HTTPException(413, f"The upload is larger than {limits.upload_bytes / 2**20:.3g} MB.")


class _Form:
    """Takes the parser's events. Everything it keeps is bounded."""

    def __init__(self, limits: Limits) -> None:
        self.upload, self.complete = Upload(), False
        self._limits, self._parts = limits, 0
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        self._name, self._content = "", bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._grow(self._header, data[start:end], HEADER_BYTES),
            "on_header_value": lambda data, start, end: self._grow(self._value, data[start:end], HEADER_BYTES),
            "on_header_end": self._end_header,
            "on_headers_finished": self._headers_finished,
            "on_part_data": lambda data, start, end: self._grow(self._content, data[start:end], self._room),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    @property
    def _room(self) -> int:
        return self._limits.upload_bytes if self._name == "file" else FIELD_BYTES

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise HTTPException(400, f"The form has more than {MOST_PARTS} parts.")
        self._disposition, self._name, self._content = b"", "", bytearray()

    def _grow(self, buffer: bytearray, data: bytes, most: int) -> None:
        if len(buffer) + len(data) > most:
            if buffer is self._content and self._name == "file":
                raise _too_large(self._limits)
            raise HTTPException(400, "A field of the form is too long.")
        buffer += data

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _malformed()
        self._name = options[b"name"].decode("utf-8", "replace")
        if self._name == "file":
            if self.upload.data is not None:
                raise HTTPException(400, "Send one picture at a time.")
            self.upload.name = shown_name(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _end_part(self) -> None:
        if self._name == "file":
            self.upload.data = bytes(self._content)
        else:
            self.upload.fields[self._name] = self._content.decode("utf-8", "replace")
        self._content = bytearray()

    def _end(self) -> None:
        self.complete = True


def shown_name(text: str) -> str:
    """A file name to show: never a path, nothing that does not print (or turns text around), of limited length."""
    last = text.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(char for char in last if char.isprintable()).strip()[:NAME_LENGTH]
