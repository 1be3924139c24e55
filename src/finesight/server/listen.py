"""The socket and the web server around the app."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from finesight.errors import FineSightError
from finesight.server.limits import Limits

KEEP_ALIVE = 5  # seconds an idle connection stays open
HEADER_SECONDS = 15.0  # to send a request line and headers
GRACE = 3  # seconds for what is being answered when the server stops


def bind(host: str, port: int) -> socket.socket:
    """Taken before anything slow, so that a port in use is known at once. Port 0: any free one."""
    bare = host.strip("[]")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as error:
        raise FineSightError(f"--host {host}: there is no such address ({error.strerror or error}).") from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(256)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise FineSightError(
                f"Port {port} of {host} is taken by another program: give --port another number, or 0 for any free one."
            ) from error
        raise FineSightError(f"Cannot listen at {host}, port {port}: {error.strerror or error}.") from error
    return bound


def address_of(bound: socket.socket, host: str) -> str:
    """What to type into a browser."""
    port = bound.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host.strip("[]"), host)
    if ":" in name and not name.startswith("["):
        name = f"[{name}]"
    return f"http://{name}:{port}/"


class _Hasty(H11Protocol):
    """Closes connections that send nothing, or headers a byte at a time: they would hold a place for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: object = None
        self._timer = self.loop.call_later(HEADER_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Twice the same finished request (or none at all): nothing was asked in between."""
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete
        if idle and (cycle is None or cycle is self._seen):
            self.transport.close()
            return
        self._seen = cycle
        self._timer = self.loop.call_later(HEADER_SECONDS, self._look)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        threading.Thread(target=self._on_start, daemon=True).start()  # a browser may take its time


def serve_app(app: FastAPI, bound: socket.socket, limits: Limits, started: Callable[[], None]) -> None:
    """Until Ctrl-C, which is the ordinary end; any other signal ends the process as it always does."""
    config = uvicorn.Config(
        app,
        http=_Hasty,
        ws="none",
        loop="asyncio",
        lifespan="off",  # there is none; cut short by a second Ctrl-C it would leave a trace
        log_level="warning",
        access_log=False,  # it would hold the addresses with their tokens
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(config, started)
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:
        pass
    finally:
        bound.close()
