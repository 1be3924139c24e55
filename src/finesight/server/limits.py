"""How much a server takes on at a time. Whatever comes beyond that is told to come again, at once and cheaply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from fastapi import HTTPException
from starlette.requests import Request

T = TypeVar("T")
GONE = 499  # nobody reads it: the client has closed the connection


@dataclass(frozen=True)
class Limits:
    """Chosen so that one machine with 2 cores and 4 GB stays well whatever is sent to it."""

    upload_bytes: int = 20 * 2**20
    upload_seconds: float = 30.0  # for the whole body of a request
    uploads_bytes: int = 160 * 2**20  # of all uploads being read or waiting, together
    pixels: int = 50_000_000  # of a picture that is decoded; the library's own limit is for folders one trusts
    queue: int = 32  # pictures waiting for the network
    reads: int = 256  # searches, thumbnails and lists waiting
    requests: int = 400  # of any kind at a time
    connections: int = 600
    queries: int = 64  # uploaded pictures that are remembered
    queries_bytes: int = 128 * 2**20


def busy(what: str) -> HTTPException:
    """503, and when to come again."""
    return HTTPException(503, f"The server is busy: {what}. Try again in a moment.", headers={"Retry-After": "1"})


class Lane:
    """A few threads and a line of limited length before them."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._places = name, threads + waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._turn = asyncio.Semaphore(threads)
        self.inside = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """In the line, from before the upload is read; 503 when the line is full."""
        if self.inside >= self._places:
            raise busy(f"{self._places} requests are waiting for {self._name} already")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def turn(self, request: Request, work: Callable[[], T]) -> T:
        """What ``work`` returns, done in a thread when it is this request's turn, unless its client has left."""
        async with self._turn:
            if await _has_left(request):
                raise HTTPException(GONE, "The client has left.")
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        with self.place():
            return await self.turn(request, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _has_left(request: Request) -> bool:
    """Asked twice: the first message that a request without a body has is its empty body."""
    return await request.is_disconnected() or await request.is_disconnected()


class Budget:
    """Bytes that all uploads may hold together."""

    def __init__(self, most: int) -> None:
        self._most, self.held = most, 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """``take(n)`` before keeping n more bytes; all of them are given back at the end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self._most:
                raise busy("too many uploads at a time")
            taken += count
            self.held += count

        try:
            yield take
        finally:
            self.held -= taken
