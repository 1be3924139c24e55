"""Pictures on their way in and out: refused before they are decoded when too large, and never sent as they came.

What is sent is drawn anew as a JPEG: places, names and thumbnails hidden in a camera's file stay at home.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import numpy as np
from fastapi import HTTPException
from PIL import Image

from finesight.data.decode import FORMATS, UnreachableFile, read_image_and_size
from finesight.errors import SkipImage
from finesight.features.types import Floats

THUMB, LARGE = 320, 1600  # longest sides
QUALITY = 85
HEAD_READS = 2_000  # of a file until its size is known; a camera's take some hundred …
READS = 200_000  # … and in all: many small pieces are no picture, and each takes its time
_TINT = np.array([255.0, 70.0, 0.0], np.float32)


class _Impatient(io.BufferedIOBase):
    """A file that may be read so many times. Pillow takes headers apart piece by piece: a file of a million tiny ones
    would hold a thread for a minute, or for an hour where each is joined to those before."""

    def __init__(self, stream: IO[bytes], reads: int) -> None:
        self._stream, self._left = stream, reads

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise SkipImage("it is made of too many pieces")
        return self._stream.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def impatient(stream: IO[bytes], reads: int = READS) -> IO[bytes]:
    """For decoders of what anyone may have sent."""
    return cast(IO[bytes], _Impatient(stream, reads))


def checked(stream: IO[bytes], pixels: int) -> None:
    """An HTTPException unless ``stream`` begins as a picture of at most that many pixels. Nothing is decoded."""
    stream.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(impatient(stream, HEAD_READS), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError:
        raise _too_many(pixels) from None
    except Exception:  # Pillow's parsers raise nearly anything on bad bytes
        raise HTTPException(415, _not_a_picture(stream)) from None
    finally:
        stream.seek(0)
    if width * height > pixels:
        raise _too_many(pixels)


def opened(stream: IO[bytes], pixels: int, at_least: int | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """The upright picture and the size of its original, or an HTTPException: 413, 415, 422."""
    checked(stream, pixels)
    with in_words():
        return read_image_and_size(impatient(stream), at_least)


@contextmanager
def in_words() -> Iterator[None]:
    """What decoding finds wrong with a picture, as an answer."""
    try:
        yield
    except UnreachableFile as error:
        raise HTTPException(503, f"The picture cannot be read now: {error}.", headers={"Retry-After": "5"}) from None
    except SkipImage as error:
        raise HTTPException(422, f"The picture cannot be used: {error}.") from None


def jpeg(stream: IO[bytes], side: int, pixels: int) -> bytes:
    """The picture, its longest side at most ``side``."""
    image, _ = opened(stream, pixels, at_least=side)
    return encoded(_within(image, side))


def overlay(stream: IO[bytes], mask: Floats, view: tuple[float, float, float, float], pixels: int) -> bytes:
    """A PNG of the picture with ``mask`` (H, W) laid over the part ``view`` of it that the network saw."""
    image, _ = opened(stream, pixels, at_least=LARGE // 2)
    image = _within(image, LARGE // 2)
    width, height = image.size
    x, y, w, h = view
    left, top = round(x * width), round(y * height)
    size = max(1, round((x + w) * width) - left), max(1, round((y + h) * height) - top)
    cells = Image.fromarray((np.clip(mask, 0, 1) * 255).astype(np.uint8))
    layer = Image.new("L", image.size, 0)
    layer.paste(cells.resize(size, Image.Resampling.BILINEAR), (left, top))
    share = np.asarray(layer, np.float32)[..., None] / 255  # (h, w, 1)
    base = np.asarray(image, np.float32)
    gray = base.mean(axis=2, keepdims=True) * 0.8  # dimmed where the network does not look
    mixed = gray * (1 - share) + (0.75 * base + 0.25 * _TINT) * share
    return encoded(Image.fromarray(mixed.round().astype(np.uint8)), "PNG")


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    """Without the comments, profiles and tags that the picture came with."""
    image.info = {}
    buffer = io.BytesIO()
    if kind == "JPEG":
        image.save(buffer, "JPEG", quality=QUALITY)
    else:
        image.save(buffer, kind)
    return buffer.getvalue()


def _within(image: Image.Image, side: int) -> Image.Image:
    longest = max(image.size)
    if longest <= side:
        return image
    size = max(1, round(image.width * side / longest)), max(1, round(image.height * side / longest))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _too_many(pixels: int) -> HTTPException:
    return HTTPException(413, f"The picture has more than {pixels / 1e6:g} million pixels.")


def _not_a_picture(stream: IO[bytes]) -> str:
    stream.seek(0)
    head = stream.read(1024)
    if not head:
        return "The file is empty."
    kind = "an SVG drawing" if b"<svg" in head.lower() else "not a picture, or damaged"
    return f"The file is {kind}. Send a JPEG, PNG, WebP, GIF, BMP or TIFF."
