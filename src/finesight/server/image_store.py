"""The images that a request can name: those of the index, and the last ones that were uploaded."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO

from fastapi import HTTPException

from finesight.data.geometry import Framing
from finesight.data.store import default_cache_dir
from finesight.features.preprocess import center_box
from finesight.features.types import Box, Embedding, Floats, View
from finesight.io.atomic import write_atomic
from finesight.search.base import Index, IndexItem
from finesight.server.config import ServerConfig
from finesight.server.images import THUMBNAIL_SIDE, draw_jpeg, read_view
from finesight.server.safe_files import FileStatus, ImageMissing, open_inside, place_status

KEPT_SHARE = 0.8  # of the thumbnails' limit, after the oldest have been removed
PRUNE_EVERY = 500  # new thumbnails


@dataclass(frozen=True)
class ServedImage:
    """One image, with the view and the mask of the whole of it."""

    id: str
    name: str
    width: int  # of the upright original
    height: int
    view: Box
    mask: Floats
    item: IndexItem | None = None  # of an image of the index
    data: bytes = b""  # of an upload: its file, and the features of its whole view with the encoder that made them
    features: dict[str, Floats] = field(default_factory=dict)
    fingerprint: str = ""
    others: dict[str, ServedImage] = field(default_factory=dict)  # the same upload seen by other encoders


def printable(path: str) -> str:
    """Return ``path`` with the bytes that are not UTF-8 written out, as \\xe9: JSON could not hold them."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def file_name(path: str) -> str:
    """Return the last part of ``path``, printable."""
    return PurePosixPath(printable(path)).name


class ImageStore:
    """Find images of a folder, open their files, and draw small versions of them."""

    def __init__(self, root: str, config: ServerConfig) -> None:
        self.root, self._config, self._uploads = root, config, UploadCache(config)
        folder = Path(config.cache_dir or default_cache_dir()) / "thumbs"
        self._thumbnails = ThumbnailCache(folder, config.thumbnail_bytes)

    def find(self, name: str, *indexes: Index) -> ServedImage:
        """Return the image with that id: an upload, or an item of the first index that has it. Else raise 404."""
        if name.startswith("q"):
            return self._uploads.get(name)
        for index in indexes:
            if (item := index.item(int(name))) is not None:
                view = center_box(item.width, item.height, index.meta.framing)
                return ServedImage(name, file_name(item.path), item.width, item.height, view, item.mask, item)
        raise HTTPException(404, "There is no image with that id in the index.")

    def add_upload(self, name: str, data: bytes, view: View, embedding: Embedding, fingerprint: str) -> ServedImage:
        """Remember an uploaded image and return it, under an id that nobody can guess."""
        key = f"q{secrets.token_hex(8)}"
        image = ServedImage(key, name, view.width, view.height, view.box, embedding.mask, data=data)
        image = replace(image, features=embedding.features, fingerprint=fingerprint)
        self._uploads.add(image)
        return image

    def open(self, image: ServedImage) -> tuple[IO[bytes], FileStatus | None]:
        """Open the file of an image; an upload has no status."""
        if image.item is None:
            return io.BytesIO(image.data), None
        return open_inside(self.root, image.item.path)

    def read_view(self, image: ServedImage, framing: Framing, region: Box | None = None) -> View:
        """Return what the network sees of an image, or of a part of it."""
        stream, _ = self.open(image)
        with stream:
            return read_view(stream, framing, self._config, region)

    def draw(self, image: ServedImage, side: int, known_tag: str = "") -> tuple[str, bytes | None]:
        """Return a tag that changes with the image, and a JPEG unless ``known_tag`` is that tag.

        The thumbnail of a file that has vanished may still be in the cache.
        """
        if image.item is not None and side == THUMBNAIL_SIDE:
            at_place = place_status(self.root, image.item.path)
            if at_place is not None:  # its bytes come from far: they are not fetched for nothing
                tag = self._tag(image.item, at_place.bytes, at_place.mtime_ns, side)
                if kept := self._thumbnails.get(tag):
                    return tag, None if tag == known_tag else kept
        try:
            stream, status = self.open(image)
        except ImageMissing:
            assert image.item is not None  # uploads do not vanish
            tag = self._tag(image.item, image.item.bytes, image.item.mtime_ns, side)
            kept = self._thumbnails.get(tag) if side == THUMBNAIL_SIDE else None
            if kept is None:
                raise
            return tag, kept
        with stream:
            if image.item is None or status is None:
                tag = f"{image.id}-{side}"
                return tag, None if tag == known_tag else draw_jpeg(stream, side, self._config)
            tag = self._tag(image.item, status.bytes, status.mtime_ns, side)
            if tag == known_tag:
                return tag, None
            data = self._thumbnails.get(tag) if side == THUMBNAIL_SIDE else None
            if data is None:
                data = draw_jpeg(stream, side, self._config)
                if side == THUMBNAIL_SIDE:
                    self._thumbnails.add(tag, data)
            return tag, data

    def _tag(self, item: IndexItem, size: int, mtime_ns: int, side: int) -> str:
        """Return a name that is another one as soon as the file changes."""
        file = os.path.join(self.root, item.path)
        content = f"{size}\0{mtime_ns}\0{side}\0".encode() + os.fsencode(file)
        return hashlib.sha256(content).hexdigest()[:40]


class UploadCache:
    """Keep the uploads that were used last, so that searching by a part of one needs no second upload."""

    def __init__(self, config: ServerConfig) -> None:
        self._most, self._most_bytes, self._bytes = config.remembered, config.remembered_bytes, 0
        self._kept: OrderedDict[str, ServedImage] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, image: ServedImage) -> None:
        """Keep ``image``, and drop the oldest while there are too many or they are too large together."""
        with self._lock:
            self._kept[image.id] = image
            self._bytes += len(image.data)
            while len(self._kept) > self._most or (self._bytes > self._most_bytes and len(self._kept) > 1):
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old.data)

    def get(self, name: str) -> ServedImage:
        """Return an upload, or raise 404."""
        with self._lock:
            if name not in self._kept:
                raise HTTPException(404, "That upload is no longer remembered: send the picture again.")
            self._kept.move_to_end(name)
            return self._kept[name]


class ThumbnailCache:
    """Keep JPEGs in a folder, which may be deleted at any time. A disk that is full or read-only costs only speed."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._added, self._lock = 0, threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Return a thumbnail, if there is one."""
        try:
            return self._file(key).read_bytes() or None
        except OSError:
            return None

    def add(self, key: str, data: bytes) -> None:
        """Write a thumbnail, and remove old ones now and then."""
        with self._lock, contextlib.suppress(OSError):
            write_atomic(self._file(key), data)
            self._added += 1
            if self._added % PRUNE_EVERY == 0:
                self.prune()

    def prune(self) -> None:
        """Remove the oldest thumbnails if all together are too large."""
        found = []
        for file in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_size, file))
        total = sum(size for _, size, _ in found)
        if total <= self._most_bytes:
            return
        for _, size, file in sorted(found, key=lambda entry: entry[0]):
            with contextlib.suppress(OSError):
                file.unlink()
                total -= size
            if total <= KEPT_SHARE * self._most_bytes:
                return

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.jpg"
