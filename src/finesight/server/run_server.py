"""Run a server: bind its socket, bring its index up to date in the background, and answer until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from finesight.errors import FineSightError
from finesight.features.text_tower import TextTower
from finesight.features.types import Embedder
from finesight.io.console import console
from finesight.search.base import Index
from finesight.server.app import create_app, create_judge_app, create_several_app
from finesight.server.config import ServerConfig, is_loopback
from finesight.server.feature_sets import AFTER
from finesight.server.job import BackgroundJob, bring_up_to_date
from finesight.server.judge_desk import JudgeRoom
from finesight.server.service import SearchService
from finesight.server.several import SeveralServices, short_names

KEEP_ALIVE_SECONDS = 5  # an idle connection stays open so long
GRACE_SECONDS = 3  # for running requests when the server stops
JOB_SECONDS = 5.0  # for the image that the background job is working on


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port. Raise FineSightError when that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
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


def browser_address(bound: socket.socket, host: str) -> str:
    """Return the address to type into a browser."""
    port = bound.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host.strip("[]"), host)
    if ":" in name and not name.startswith("["):
        name = f"[{name}]"
    return f"http://{name}:{port}/"


def announce(bound: socket.socket, config: ServerConfig) -> None:
    """Print the address to standard output, and open it in a browser if that is wanted."""
    address = browser_address(bound, config.host)
    link = f"{address}?token={quote(config.token, safe='')}" if config.token else address
    print(f"FineSight is at {link}", flush=True)
    console.print("Ctrl-C stops it.")
    if config.open_browser and _has_screen():
        webbrowser.open(link)


class _HeaderTimeout(H11Protocol):
    """Close connections that send nothing, or headers a byte at a time: they would hold a place for ever."""

    def __init__(self, *args: object, seconds: float, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._seconds = seconds
        self._last_cycle: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._seconds, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        """Close the connection if no request was begun since the last check."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or (cycle.response_complete and cycle is self._last_cycle):
            self.transport.close()
            return
        self._last_cycle = cycle
        self._timer = self.loop.call_later(self._seconds, self._close_if_idle)


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what uvicorn says of requests that it ends because the server was stopped."""
    return "graceful shutdown" not in str(record.msg)


def _app_of(service: SearchService | JudgeRoom | SeveralServices) -> FastAPI:
    if isinstance(service, JudgeRoom):
        return create_judge_app(service)
    return create_several_app(service) if isinstance(service, SeveralServices) else create_app(service)


class SearchServer(uvicorn.Server):
    """Serve a service over HTTP and call ``started`` when it answers. Setting ``should_exit`` ends it."""

    def __init__(self, service: SearchService | JudgeRoom | SeveralServices, started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            _app_of(service),
            http=functools.partial(_HeaderTimeout, seconds=service.config.header_seconds),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            lifespan="off",  # there is none; cut short by a second Ctrl-C it would leave a trace
            log_level="warning",
            access_log=False,  # it would hold the addresses with their tokens
            server_header=False,
            proxy_headers=False,
            limit_concurrency=service.config.connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call ``started`` in a thread: opening a browser may take a while."""
        await super().startup(sockets=sockets)
        threading.Thread(target=self._on_start, daemon=True).start()


def run_server(
    index: Index,
    embedder: Embedder,
    config: ServerConfig,
    job: BackgroundJob | None = None,
    *,
    name: str = AFTER,
    tower: TextTower | None = None,
) -> None:
    """Serve until Ctrl-C. The address is printed to standard output as soon as the server answers.

    ``name`` says whether the features of the index are those before training or after it. With a ``tower`` the index
    can be searched by words.
    """
    bound = bind(config.host, config.port)
    service = SearchService(index, embedder, config, job, name=name, tower=tower)
    if job is not None:
        job.start()
    _serve_until_stopped(bound, service, config, [index.meta.root])


def run_several(opened: Sequence[tuple[str, Index, Embedder]], config: ServerConfig) -> None:
    """Serve several indexes, given with where they are, until Ctrl-C: a choice at /, and each below /i/NAME/."""
    bound = bind(config.host, config.port)
    names = short_names([where for where, _, _ in opened])
    services = {
        name: SearchService(index, embedder, config) for name, (_, index, embedder) in zip(names, opened, strict=True)
    }
    _serve_until_stopped(bound, SeveralServices(services, config), config, [one.meta.root for _, one, _ in opened])


def _serve_until_stopped(
    bound: socket.socket, service: SearchService | SeveralServices, config: ServerConfig, roots: Sequence[str]
) -> None:
    if not config.token and not is_loopback(config.host):
        console.print(
            f"Warning: everyone who reaches {config.host} can search and see the images of {', '.join(roots)}. "
            "Give --token to require a secret.",
            markup=False,
        )
    try:
        with bound:
            SearchServer(service, lambda: announce(bound, config)).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # the ordinary end; any other signal ends the process in its usual way
    finally:
        ended = service.close(JOB_SECONDS)
    console.print("Stopped.")
    if not ended:
        _leave_at_once()


def run_judge_server(room: JudgeRoom) -> None:
    """Serve the judging page until Ctrl-C."""
    config = room.config
    bound = bind(config.host, config.port)
    try:
        with bound:
            SearchServer(room, lambda: announce(bound, config)).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # the ordinary end
    finally:
        room.close()


def _leave_at_once() -> None:
    """End the process. Its threads may take minutes; an index may be left at any point."""
    sys.stdout.flush()
    os._exit(0)


def update_job(
    where: str, embedder: Embedder, folder: str | Path, run: Path, *, workers: int | None = None, progress: bool = True
) -> BackgroundJob:
    """Return a job that brings the index ``where`` up to date with its folder; searching goes on meanwhile."""

    def work(job: BackgroundJob) -> None:
        bring_up_to_date(job, where, embedder, folder, run, workers=workers, progress=progress)

    return BackgroundJob(work)


def _has_screen() -> bool:
    """Return whether a browser can be shown. Without a screen, Python would start a text browser in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
