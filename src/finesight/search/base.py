"""What every index promises, whatever engine keeps it. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from finesight.data.geometry import CROP_PCT, MAX_SIDE, CropMode, Framing, Interpolation
from finesight.errors import FineSightError
from finesight.features.encoder_folder import is_model_file
from finesight.features.types import Floats

Ids = NDArray[np.int64]
FORMAT = 1
FEATURES = "features"  # the method and the space of an index of features that another program made
MODEL = "model.onnx"  # beside an index or in a run: found without being named
SpaceName = Annotated[str, Field(pattern=r"^[\w:+-]+$")]  # it is a part of names of files
Width = Annotated[int, Field(ge=1, le=2**24)]


class IndexMeta(BaseModel):
    """How an index was made; every index keeps this."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    fingerprint: str  # of the encoder: its configuration and weights
    method: str
    resolution: int = Field(ge=1, le=MAX_SIDE)
    crop_pct: float = Field(CROP_PCT, gt=0, le=1)
    interpolation: Interpolation = "bilinear"
    crop_mode: CropMode = "center"
    spaces: tuple[SpaceName, ...] = Field(min_length=1)  # poolings whose features are kept, the encoder's own first
    dimension: Width  # of features, except
    dimensions: dict[str, Width] = {}  # those of spaces that have others
    root: str  # the folder that paths are relative to, absolute
    run: str  # where the encoder was when the index was made, absolute

    @property
    def framing(self) -> Framing:
        """How a picture became the view that was embedded."""
        return Framing(self.resolution, self.crop_pct, self.interpolation, self.crop_mode)

    def width(self, space: str) -> int:
        """Return how many numbers the features of a space have."""
        return self.dimensions.get(space, self.dimension)

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Parse what the index ``name`` keeps; raise ``FineSightError`` if it is damaged or of another format."""
        try:
            meta = cls.model_validate_json(text)
        except ValueError as error:
            raise FineSightError(f"{name} is no FineSight index, or damaged or of another version: {error}") from error
        if meta.format != FORMAT:
            raise FineSightError(f"{name} has format {meta.format}; this version reads {FORMAT}.")
        return meta


@dataclass(frozen=True)
class IndexItem:
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
    """A batch to add. An item replaces the one that has its id or its path."""

    items: Sequence[IndexItem]
    vectors: dict[str, Floats]  # space -> (n, D), each of length 1


@dataclass(frozen=True)
class ItemList:
    """All items of an index, by path: only what tells whether a file is new or changed."""

    ids: Ids
    paths: NDArray[np.str_]
    bytes: Ids
    mtimes: Ids

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, str, int, int]]) -> ItemList:
        """Make the list from tuples of id, path, bytes and time."""
        ids, paths, sizes, mtimes = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(
            np.array(ids, np.int64), np.array(paths, np.str_), np.array(sizes, np.int64), np.array(mtimes, np.int64)
        )


class Index(ABC):
    """Unit vectors on disk or in a server, found by inner product. Adding and removing are each all or nothing.

    A process that is killed leaves an index that opens and holds every batch whose ``add`` had returned.
    """

    meta: IndexMeta

    @classmethod
    @abstractmethod
    def open(cls, where: str) -> Self:
        """Open the index at a URI; raise ``FineSightError`` if there is none or it cannot be used."""

    @classmethod
    @abstractmethod
    def create(cls, where: str, meta: IndexMeta, encoder: Path) -> Self:
        """Make an empty index for an encoder, its folder or exported file; raise ``FineSightError`` if there is one."""

    @classmethod
    @abstractmethod
    def exists(cls, where: str) -> bool:
        """Return whether there is an index at the URI itself."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def list_items(self) -> ItemList: ...

    @abstractmethod
    def items(self, ids: Sequence[int]) -> list[IndexItem | None]:
        """Return the item of each id, None where there is none."""

    def item(self, item: int) -> IndexItem | None:
        return self.items([item])[0]

    @abstractmethod
    def add(self, batch: NewItems) -> None: ...

    def check_batch(self, batch: NewItems) -> list[IndexItem]:
        """Return the items of a batch.

        Raises ``ValueError`` if one is there twice or vectors have a wrong shape, and ``FineSightError`` if a vector is
        not of numbers.
        """
        items = list(batch.items)
        if len({item.id for item in items}) != len(items) or len({item.path for item in items}) != len(items):
            raise ValueError("an item is twice in one batch")
        for space in self.meta.spaces:
            if batch.vectors[space].shape != (len(items), self.meta.width(space)):
                raise ValueError(f"{len(items)} items but {space} vectors {batch.vectors[space].shape}")
            bad = np.flatnonzero(~np.isfinite(batch.vectors[space]).all(1))
            if len(bad):
                raise FineSightError(
                    f"The features of {items[bad[0]].path!r} ({space}) are not numbers: the weights of the encoder are "
                    "damaged, or its training failed. Nothing of them goes into the index."
                )
        return items

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer while the block runs; raise ``FineSightError`` at once if there is another."""
        yield

    def find_damaged(self, *, everything: bool = False) -> Ids:
        """Return the ids of items whose vectors are known not to be what was written; they can be added again.

        With ``everything`` all files are read for it, else those that take a moment.
        """
        return np.zeros(0, np.int64)

    @abstractmethod
    def remove(self, ids: Ids) -> None: ...

    def check_space(self, space: str) -> str:
        """Return ``space``; raise ``FineSightError`` if the index has no such features."""
        if space not in self.meta.spaces:
            raise FineSightError(f"The index has no features {space!r}. It has: {', '.join(self.meta.spaces)}.")
        return space

    @abstractmethod
    def finish(self) -> None:
        """Make searching fast after the last change, and measure what that costs in recall."""

    @abstractmethod
    def search(self, queries: Floats, k: int, space: str) -> tuple[Floats, Ids]:
        """Return the k nearest of each query: (n, D) -> scores (n, k) descending and ids (n, k).

        Of equal scores the smallest ids come first. Scores and ids are -1 where there are fewer than k items.
        """

    @abstractmethod
    def vectors(self, ids: Ids, space: str) -> Floats:
        """Return the vector of each id, (n,) -> (n, D); raise ``FineSightError`` if the index lacks one."""

    @abstractmethod
    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        """Yield all ids and vectors in a stable order, at most ``rows`` at a time."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return ``store``, ``items``, ``kind`` of structure, ``recall_at_10``, ``spaces`` and what the engine adds."""

    @abstractmethod
    def encoder_folder(self) -> Path:
        """Return the folder that the encoder of the index can be loaded from."""

    def model_file(self) -> Path:
        """Return where an exported encoder that is kept with the index lies; there may be none."""
        run = Path(self.meta.run)
        return run if is_model_file(run) else run / MODEL

    def skipped_file(self, run: Path) -> Path:
        """Return the file for images that were left out and why; ``run`` is the folder of the encoder's run."""
        return run / "index-skipped.csv"

    def reopened(self) -> Self | None:
        """Return the index that took the place of this one since it was opened; None while it is the same."""
        return None

    def notes_file(self) -> Path:
        """Return the file for labels and other notes (``finesight.search.notes``), which outlives the index.

        Where the index is in no folder of this machine, it is in the user's state folder, by the folder of images.
        """
        state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "finesight" / "notes"
        root = hashlib.sha256(os.fsencode(self.meta.root)).hexdigest()[:16]
        return state / f"{root}.db"

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
