"""What an index is, whatever it is kept in, and what an engine sees in an image. No torch: searching needs none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from finesight.features.types import Floats

Ids = NDArray[np.int64]


class IndexMeta(BaseModel):
    """What an index remembers of how it was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    fingerprint: str  # of the encoder: its configuration and weights
    method: str
    resolution: int
    spaces: tuple[str, ...]  # poolings whose features are kept, the encoder's own first
    dimension: int
    root: str  # the folder that paths are relative to, absolute
    run: str  # where the encoder was when the index was made, absolute


@dataclass(frozen=True)
class Item:
    """One image of an index."""

    id: int  # from its path: the same in every index of the same folder, below 2**52
    path: str  # relative to the root of the index, POSIX
    bytes: int  # size and time of the file when it was embedded
    mtime_ns: int
    width: int  # of the upright original
    height: int
    mask: Floats  # (H, W) in [0, 1]: attention over the view


@dataclass(frozen=True)
class NewItems:
    """A batch to add. An item whose id is there already takes its place."""

    items: Sequence[Item]
    vectors: dict[str, Floats]  # space -> (n, D), each of length 1


@dataclass(frozen=True)
class Known:
    """All items of an index, as little of each as tells whether a file is new or changed."""

    ids: Ids
    paths: NDArray[np.str_]
    bytes: Ids
    mtimes: Ids


class Index(ABC):
    """Unit vectors on disk or in a server, found by inner product. Adding and removing are each all or nothing."""

    meta: IndexMeta

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def known(self) -> Known: ...

    @abstractmethod
    def item(self, item: int) -> Item | None: ...

    def items(self, ids: Sequence[int]) -> list[Item | None]:
        """Several at a time."""
        return [self.item(int(item)) for item in ids]

    @abstractmethod
    def add(self, batch: NewItems) -> None: ...

    def checked(self, batch: NewItems) -> list[Item]:
        """The items of a batch that can be added: each once, with a vector of the right width in every space."""
        items = list(batch.items)
        if len({item.id for item in items}) != len(items) or len({item.path for item in items}) != len(items):
            raise ValueError("an item is twice in one batch")
        for space in self.meta.spaces:
            if batch.vectors[space].shape != (len(items), self.meta.dimension):
                raise ValueError(f"{len(items)} items but {space} vectors {batch.vectors[space].shape}")
        return items

    @abstractmethod
    def remove(self, ids: Ids) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """After the last change: make searching fast, and measure what that costs in recall."""

    @abstractmethod
    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        """(n, D) -> scores (n, k) descending and ids (n, k); -1 where there are fewer than k items."""

    @abstractmethod
    def vectors(self, ids: Ids, space: str) -> Floats:
        """(n,) -> (n, D)"""

    @abstractmethod
    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        """All vectors, a block at a time, in a stable order."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """For people and scripts: kind of structure, items, measured recall."""

    @abstractmethod
    def encoder_folder(self) -> Path:
        """Where the encoder that made it can be loaded from."""

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Hit:
    """One answer of a search."""

    id: int
    path: str
    score: float  # cosine, 1 at most
    width: int = field(default=0, compare=False)  # of the upright original
    height: int = field(default=0, compare=False)
