"""Pictures that were uploaded lately, so that "a box in it" and "the next page" need no second upload."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from finesight.features.types import Box, Embedding


@dataclass(frozen=True)
class Query:
    """An uploaded picture and what the network saw in it."""

    id: str  # q and 16 hex digits, not to be guessed
    name: str
    data: bytes
    width: int  # of the upright picture
    height: int
    view: Box
    embedding: Embedding


def new_id() -> str:
    return f"q{secrets.token_hex(8)}"


class Queries:
    """The last ones used; the oldest go when there are too many or they are too large together."""

    def __init__(self, count: int, total_bytes: int) -> None:
        self._count, self._most, self._bytes = count, total_bytes, 0
        self._kept: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, query: Query) -> None:
        with self._lock:
            self._kept[query.id] = query
            self._bytes += len(query.data)
            while len(self._kept) > self._count or (self._bytes > self._most and len(self._kept) > 1):
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old.data)

    def get(self, name: str) -> Query | None:
        with self._lock:
            query = self._kept.get(name)
            if query is not None:
                self._kept.move_to_end(name)
            return query
