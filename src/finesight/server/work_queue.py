"""Limit how much the server works on at a time. Requests beyond that are told at once to come again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from fastapi import HTTPException
from starlette.requests import Request

T = TypeVar("T")
CLIENT_LEFT = 499  # nobody reads this status: the client has closed the connection


def busy(reason: str) -> HTTPException:
    """Return a 503 that says when to come again."""
    return HTTPException(503, f"The server is busy: {reason}. Try again in a moment.", headers={"Retry-After": "1"})


class WorkQueue:
    """Run work in a few threads, with a limited number of requests waiting for them."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._places = name, threads + waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free_threads = asyncio.Semaphore(threads)
        self.size = 0  # requests that wait or run

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Take a place in the queue, before the upload is read; raise 503 when the queue is full."""
        if self.size >= self._places:
            raise busy(f"{self._places} requests are waiting for {self._name} already")
        self.size += 1
        try:
            yield
        finally:
            self.size -= 1

    async def run_reserved(self, request: Request, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread when its turn has come, unless the client has left by then."""
        async with self._free_threads:
            # Asked twice, because the first message of a request without a body is its empty body.
            if await request.is_disconnected() or await request.is_disconnected():
                raise HTTPException(CLIENT_LEFT, "The client has left.")
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        """Reserve a place and run ``work``."""
        with self.reserve():
            return await self.run_reserved(request, work)

    def close(self) -> None:
        """Drop all work that waits."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ByteBudget:
    """Bytes that all uploads may hold together."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """Yield ``take(n)``, to be called before n more bytes are kept; all are given back at the end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.used + count > self._limit:
                raise busy("too many uploads at a time")
            taken += count
            self.used += count

        try:
            yield take
        finally:
            self.used -= taken
