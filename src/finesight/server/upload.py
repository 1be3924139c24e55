"""Read one image and a few short fields out of a multipart body, counting bytes while it arrives.

Nothing that a client says about its upload is trusted: the length is counted, and the decoder finds the type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from fastapi import HTTPException
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from finesight.server.config import ServerConfig
from finesight.server.work_queue import CLIENT_LEFT, Arrival, Arrivals

FIELDS = 24  # beside the file
FIELD_BYTES = 1024
ENVELOPE_BYTES = 64 * 1024  # of boundaries, part headers and fields, on top of the image
LINGER_SECONDS = 1.0  # for a refused body: a client that is still sending would not see the answer
NAME_LENGTH = 120
NOT_A_FORM = "The form cannot be read: it is not well-formed multipart/form-data."


@dataclass(frozen=True)
class UploadForm:
    """Hold what a form contained."""

    data: bytes | None  # of the part called ``file``
    name: str
    fields: dict[str, str]


class _FormParser(MultiPartParser):
    """Starlette's parser, which must also have seen the end of the form."""

    complete = False

    def on_end(self) -> None:
        self.complete = True


async def read_upload(
    request: Request, config: ServerConfig, arrivals: Arrivals, take: Callable[[int], None]
) -> UploadForm:
    """Return the form of ``request``, or raise an HTTPException: 400, 408, 413, 415, 503.

    ``take`` is called with the length of every piece before it is kept.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "Send the picture as multipart/form-data, in a part called 'file'.")
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if not boundary:
        raise HTTPException(400, NOT_A_FORM)
    limit = config.upload_bytes + ENVELOPE_BYTES
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        await _linger(request, config.upload_bytes)
        raise _too_large(config)

    async def counted(arrival: Arrival) -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            arrival.received += len(chunk)
            if arrival.received > limit:
                await _linger(request, config.upload_bytes)
                raise _too_large(config)
            take(len(chunk))
            if chunk:
                yield chunk

    # Without the charset that the client names: some of Python's codecs fail in ways that Starlette does not expect.
    headers = Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'})
    try:
        async with arrivals.receive(config.upload_seconds) as arrival:
            parser = _FormParser(headers, counted(arrival), max_files=1, max_fields=FIELDS, max_part_size=FIELD_BYTES)
            parser.spool_max_size = 2 * limit  # in memory: what people search with is not written to disk
            form = await parser.parse()
    except TimeoutError:
        words = (
            f"The upload took longer than {config.upload_seconds:.0f} seconds, or was slow while many others waited."
        )
        raise HTTPException(408, words) from None
    except MultiPartException as error:
        raise HTTPException(400, f"The form cannot be read: {error.message}") from None
    except ClientDisconnect:
        raise HTTPException(CLIENT_LEFT, "The client has left.") from None
    if not parser.complete:
        raise HTTPException(400, NOT_A_FORM)
    return await _unpack(form.multi_items(), config)


async def _unpack(items: list[tuple[str, UploadFile | str]], config: ServerConfig) -> UploadForm:
    data, name, fields = None, "", {}
    for key, value in items:
        if isinstance(value, str):
            fields[key] = value
        elif key == "file":
            if (value.size or 0) > config.upload_bytes:
                raise _too_large(config)
            data, name = await value.read(), shown_name(value.filename or "")
    return UploadForm(data, name, fields)


async def _linger(request: Request, limit: int) -> None:
    """Receive and drop a little more: most clients read an answer only after they have sent everything."""
    dropped = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while dropped <= limit:
                message = await request.receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _too_large(config: ServerConfig) -> HTTPException:
    return HTTPException(413, f"The upload is larger than {config.upload_bytes / 2**20:.3g} MB.")


def shown_name(text: str) -> str:
    """Return a file name to show: no path, only printable characters (none that reverse text), of limited length."""
    last = text.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(char for char in last if char.isprintable()).strip()[:NAME_LENGTH]
