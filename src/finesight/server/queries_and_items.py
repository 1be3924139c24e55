"""Pictures that can be asked about, whether they are in the index or were uploaded."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO

from fastapi import HTTPException

from finesight.features.preprocess import center_box, picture_view
from finesight.features.types import Box, Floats, View
from finesight.search.base import Index, Item
from finesight.server import schemas
from finesight.server.images import THUMB, checked, impatient, in_words, jpeg
from finesight.server.limits import Limits
from finesight.server.queries import Queries, Query
from finesight.server.safe_files import Stamp, Vanished, open_inside
from finesight.server.thumbs import Thumbs


@dataclass(frozen=True)
class Subject:
    """One of them. Its view and mask are of the whole picture, without a region."""

    id: str
    name: str
    width: int
    height: int
    view: Box
    mask: Floats
    item: Item | None = None
    query: Query | None = None


def printable(path: str) -> str:
    """Names that are not UTF-8 have their odd bytes written out, as \\xe9: JSON could not hold them."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def name_of(path: str) -> str:
    return PurePosixPath(printable(path)).name


class Subjects:
    """Finds them, opens their files, and makes small pictures of them."""

    def __init__(self, index: Index, limits: Limits, queries: Queries, thumbs: Thumbs) -> None:
        self._index, self._limits, self._queries, self._thumbs = index, limits, queries, thumbs

    def find(self, name: str) -> Subject:
        """404 when it is not there, or no longer."""
        if name.startswith("q"):
            query = self._queries.get(name)
            if query is None:
                raise HTTPException(404, "That upload is no longer remembered: send the picture again.")
            return Subject(name, query.name, query.width, query.height, query.view, query.embedding.mask, query=query)
        item = self.item(name)
        view = center_box(item.width, item.height, self._index.meta.resolution)
        return Subject(name, name_of(item.path), item.width, item.height, view, item.mask, item=item)

    def item(self, name: str) -> Item:
        item = self._index.item(int(name))
        if item is None:
            raise HTTPException(404, "There is no image with that id in the index.")
        return item

    def open(self, subject: Subject) -> tuple[IO[bytes], Stamp | None]:
        """Its bytes. An upload cannot change, so it has no stamp."""
        if subject.query is not None:
            return io.BytesIO(subject.query.data), None
        assert subject.item is not None
        return open_inside(self._index.meta.root, subject.item.path)

    def look_at(self, subject: Subject, region: Box | None = None) -> View:
        """What the network is to see of it."""
        stream, _ = self.open(subject)
        with stream:
            return view_of(stream, self._index.meta.resolution, self._limits.pixels, region)

    def picture(self, subject: Subject, side: int, known: str = "") -> tuple[str, bytes | None]:
        """A JPEG and its tag, which changes when the picture does; only the tag if that is the one ``known``.

        Of a file that has vanished there may still be the thumbnail.
        """
        try:
            stream, stamp = self.open(subject)
        except Vanished:
            return self._kept(subject, side)
        with stream:
            tag = f"{subject.id}-{side}" if stamp is None else self._key(subject, stamp, side)
            if tag == known:
                return tag, None
            cached = side == THUMB and stamp is not None
            found = self._thumbs.get(tag) if cached else None
            if found is None:
                found = jpeg(stream, side, self._limits.pixels)
                if cached:
                    self._thumbs.put(tag, found)
            return tag, found

    def _kept(self, subject: Subject, side: int) -> tuple[str, bytes]:
        assert subject.item is not None  # uploads do not vanish
        tag = self._key(subject, Stamp(subject.item.bytes, subject.item.mtime_ns), side)
        found = self._thumbs.get(tag) if side == THUMB else None
        if found is None:
            raise Vanished
        return tag, found

    def _key(self, subject: Subject, stamp: Stamp, side: int) -> str:
        assert subject.item is not None
        return Thumbs.key(os.path.join(self._index.meta.root, subject.item.path), stamp, side)


def view_of(stream: IO[bytes], resolution: int, pixels: int, region: Box | None = None) -> View:
    """The view of a picture, which is read as the index read its own; 413, 415 or 422 when it cannot be used."""
    checked(stream, pixels)
    with in_words():
        return picture_view(impatient(stream), resolution, region)


def box_model(box: Box) -> schemas.ViewBox:
    x, y, width, height = box
    return schemas.ViewBox(x=x, y=y, width=width, height=height)


def rows(cells: Floats) -> list[list[float]]:
    """A map for JSON: five digits are more than a screen shows."""
    return [[round(value, 5) for value in row] for row in cells.tolist()]
