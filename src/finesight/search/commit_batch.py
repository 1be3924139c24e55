"""Embed views in groups and commit them to an index a few at a time, so that a kill loses little work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from finesight.data.decode import UnreachableFile
from finesight.errors import SkipImage
from finesight.features.embedder import unit
from finesight.features.types import Embedder, Embedding, View
from finesight.search.base import Index, IndexItem, NewItems
from finesight.search.image_files import ImageFile

if TYPE_CHECKING:
    from finesight.features.on_ray import Embedded
    from finesight.search.build import IndexUpdate

COMMIT_IMAGES = 64  # embedded images after which they are committed …
COMMIT_SECONDS = 5.0  # … or what is done after so long: a kill loses no more than that and one group …
GROUP = 32  # … of images that go through the network together
FEW = 8  # images that do not wait for others where these are still being read


class CommitBatch:
    """Embeds views up to ``GROUP`` at a time and commits them to the index after ``size`` of them, or some seconds.

    ``ids`` are of items that the index had before.
    """

    def __init__(
        self, index: Index, embedder: Embedder, ids: Mapping[str, int], update: IndexUpdate, size: int
    ) -> None:
        self.index, self.embedder, self.ids, self.update, self.size = index, embedder, ids, update, size
        self.waiting: list[tuple[View, int, str, tuple[int, int]]] = []  # not embedded yet
        self.first = 0.0  # when the first of these came
        self._clear()

    def _clear(self) -> None:
        self.items: list[IndexItem] = []
        self.embeddings: list[Embedding] = []
        self.unusable: list[int] = []
        self.since = time.monotonic()

    def add(self, view: View, number: int, path: str, stamp: tuple[int, int]) -> None:
        """Let a view wait until its group is full; embed and commit what is due."""
        if not self.waiting:
            self.first = time.monotonic()
        self.waiting.append((view, number, path, stamp))
        is_full = len(self.waiting) >= min(GROUP, self.size)
        if is_full or time.monotonic() - self.first >= COMMIT_SECONDS:
            self._embed_and_commit()

    def embed_meanwhile(self) -> None:
        """Embed what waits, if it is enough, as the next image is still being read."""
        if len(self.waiting) >= FEW:
            self._embed_and_commit()

    def _embed_and_commit(self) -> None:
        self.embed()
        if len(self.items) >= self.size or time.monotonic() - self.since >= COMMIT_SECONDS:
            self.commit()

    def embed(self) -> None:
        """Embed the views that wait, together."""
        if not self.waiting:
            return
        embeddings = self.embedder.encode([view for view, *_ in self.waiting])
        for (view, number, path, stamp), embedding in zip(self.waiting, embeddings, strict=True):
            self.items.append(IndexItem(number, path, *stamp, view.width, view.height, embedding.mask))
            self.embeddings.append(embedding)
        self.waiting.clear()

    def take(self, file: ImageFile, made: Embedded, number: int) -> None:
        """Take what a cluster made of a file; its size and time are those of the listing."""
        if made.reason:
            return self.skip(file.path, (UnreachableFile if made.unreachable else SkipImage)(made.reason))
        stamp = file.bytes, file.mtime_ns
        self.items.append(IndexItem(number, file.path, *stamp, made.width, made.height, made.mask))
        self.embeddings.append(Embedding({name: unit(values) for name, values in made.features.items()}, made.mask))
        if len(self.items) >= self.size:
            self.commit()
        return None

    def skip(self, path: str, reason: SkipImage) -> None:
        """Remove an item that is no picture any more; keep one that cannot be reached now, as it may come back."""
        self.update.skipped.append((path, str(reason)))
        if path in self.ids:
            if isinstance(reason, UnreachableFile):
                self.update.kept += 1
            else:
                self.unusable.append(self.ids[path])
                self.update.removed += 1

    def commit(self) -> None:
        """Write what is embedded to the index, and remove items that are no pictures any more."""
        if self.unusable:
            self.index.remove(np.array(self.unusable, np.int64))
        if self.items:
            spaces = self.index.meta.spaces
            vectors = {space: np.stack([one.features[space] for one in self.embeddings]) for space in spaces}
            self.index.add(NewItems(self.items, vectors))
            changed = sum(item.path in self.ids for item in self.items)
            self.update.changed += changed
            self.update.added += len(self.items) - changed
        self._clear()
