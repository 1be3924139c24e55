"""Limit how much the server works on at a time. Requests beyond that are told at once to come again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from fastapi import HTTPException
from starlette.requests import Request

from finesight.io.children import Children
from finesight.io.memory import give_back_memory

T = TypeVar("T")
ROOM_SECONDS = 1.0  # that every body may take, however many others come
END_SECONDS = 2.0  # for work under way when the server stops
LARGE_BYTES = 4 * 2**20  # of an upload after which memory is given back
GIVE_BACK_SECONDS = 1.0
CLIENT_LEFT = 499  # nobody reads this status: the client has closed the connection


def busy(reason: str) -> HTTPException:
    """Return a 503 that says when to come again."""
    return HTTPException(503, f"The server is busy: {reason}. Try again in a moment.", headers={"Retry-After": "1"})


class WorkQueue:
    """Run work in a few threads, with a limited number of requests waiting for them."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._places = name, threads + waiting
        self._children, self._running, self._idle = Children(), 0, threading.Condition()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=self._children.adopt_thread)
        self._free_threads = asyncio.Semaphore(threads)
        self.size = 0  # requests that wait or run

    def check(self) -> None:
        """Raise 503 when the queue is full."""
        if self.size >= self._places:
            raise busy(f"{self._places} requests are waiting for {self._name} already")

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Take a place in the queue, or raise 503 when it is full."""
        self.check()
        self.size += 1
        try:
            yield
        finally:
            self.size -= 1

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        """Take a place and run ``work`` in a thread when its turn has come, unless the client has left by then."""
        with self.reserve():
            async with self._free_threads:
                # Asked twice, because the first message of a request without a body is its empty body.
                if await request.is_disconnected() or await request.is_disconnected():
                    raise HTTPException(CLIENT_LEFT, "The client has left.")
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._counted, work)

    def _counted(self, work: Callable[[], T]) -> T:
        with self._idle:
            self._running += 1
        try:
            return work()
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Drop all work that waits, and end the processes that work under way has started."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._children.end()

    def wait(self, seconds: float) -> bool:
        """Return whether the work under way ends within that time."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._running, seconds)


def close_queues(*queues: WorkQueue) -> None:
    """Close all of them."""
    for queue in queues:
        queue.close()


def wait_for_queues(*queues: WorkQueue) -> bool:
    """Return whether the work under way in closed queues ends soon."""
    end = time.monotonic() + END_SECONDS
    return all([queue.wait(max(0.0, end - time.monotonic())) for queue in queues])


class ByteBudget:
    """Bytes that all uploads may hold together. After large ones, freed memory is given back to the system."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._giving_back = threading.Lock()  # held from a large upload until memory is given back

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
            if taken > LARGE_BYTES and self._giving_back.acquire(blocking=False):
                timer = threading.Timer(GIVE_BACK_SECONDS, self._give_back)  # the body itself is freed after this
                timer.daemon = True
                timer.start()

    def _give_back(self) -> None:
        self._giving_back.release()
        give_back_memory()


class Arrival:
    """A body that is being received."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self._deadline, self._begun, self.received = deadline, time.monotonic(), 0

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._begun

    @property
    def rate(self) -> float:
        """Bytes in a second."""
        return self.received / max(self.seconds, 1e-6)

    def give_up(self) -> None:
        """End it as if its time were over."""
        self._deadline.reschedule(asyncio.get_running_loop().time())


class Arrivals:
    """The bodies that are being received. When there are too many, the slowest one makes room for a new one."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, set[Arrival]()

    @asynccontextmanager
    async def receive(self, seconds: float) -> AsyncIterator[Arrival]:
        """Yield what counts one body. ``TimeoutError`` is raised after so many seconds, or when it must make room."""
        if len(self._open) >= self._most:
            late = [arrival for arrival in self._open if arrival.seconds > ROOM_SECONDS]
            if not late:
                raise busy("too many uploads at a time")
            slowest = min(late, key=lambda arrival: arrival.rate)
            self._open.discard(slowest)
            slowest.give_up()
        async with asyncio.timeout(seconds) as deadline:
            arrival = Arrival(deadline)
            self._open.add(arrival)
            try:
                yield arrival
            finally:
                self._open.discard(arrival)
