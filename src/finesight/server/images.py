"""Check, decode and draw images. Too large ones are refused before they are decoded.

The server never sends a file as it is: every image is drawn again as a JPEG, without the places, names and thumbnails
that a camera hides in its files.
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
from finesight.data.decode_limits import DecodeLimits, LimitedReads
from finesight.data.geometry import Framing
from finesight.errors import SkipImage
from finesight.features.preprocess import picture_view
from finesight.features.types import Box, Floats, View
from finesight.server.config import ServerConfig

THUMBNAIL_SIDE, IMAGE_SIDE, OVERLAY_SIDE = 320, 1600, 800  # longest sides
QUALITY = 85
ACCEPTED = "JPEG, PNG, WebP, GIF, BMP or TIFF"
HEADER_READS = 2_000  # of a file until its size is known; files of cameras need some hundred
_TINT = np.array([255.0, 70.0, 0.0], np.float32)


def check_image(stream: IO[bytes], pixels: int) -> None:
    """Raise 413 or 415 unless ``stream`` begins as an image of at most that many pixels. Nothing is decoded."""
    too_large = HTTPException(413, f"The picture has more than {pixels / 1e6:g} million pixels.")
    stream.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(cast(IO[bytes], LimitedReads(stream, HEADER_READS)), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError:
        raise too_large from None
    except Exception:  # Pillow's parsers raise nearly anything on bad bytes
        raise HTTPException(415, _describe_non_image(stream)) from None
    finally:
        stream.seek(0)
    if width * height > pixels:
        raise too_large


@contextmanager
def _decoding(stream: IO[bytes], config: ServerConfig) -> Iterator[DecodeLimits]:
    """Check ``stream`` and yield the limits to decode it in. Raise 413, 415, 422 or 503 when it cannot be used."""
    check_image(stream, config.pixels)
    try:
        yield config.decoding
    except UnreachableFile as error:
        raise HTTPException(503, f"The picture cannot be read now: {error}.", headers={"Retry-After": "5"}) from None
    except SkipImage as error:
        raise HTTPException(422, f"The picture cannot be used: {error}.") from None


def read_view(stream: IO[bytes], framing: Framing, config: ServerConfig, region: Box | None = None) -> View:
    """Return the view of an image, read in the same way as the images of the index."""
    with _decoding(stream, config) as limits:
        return picture_view(stream, framing, region, limits)


def read_small(stream: IO[bytes], side: int, config: ServerConfig) -> Image.Image:
    """Return the upright image, its longest side at most ``side``."""
    with _decoding(stream, config) as limits:
        image, _ = read_image_and_size(stream, side, limits=limits)
    longest = max(image.size)
    if longest <= side:
        return image
    size = max(1, round(image.width * side / longest)), max(1, round(image.height * side / longest))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def draw_jpeg(stream: IO[bytes], side: int, config: ServerConfig) -> bytes:
    """Return the image as a JPEG whose longest side is at most ``side``."""
    return _encode(read_small(stream, side, config), "JPEG", quality=QUALITY)


def draw_overlay(stream: IO[bytes], mask: Floats, view: Box, config: ServerConfig) -> bytes:
    """Return a PNG of the image with ``mask`` (H, W) laid over the part ``view`` of it that the network saw."""
    image = read_small(stream, OVERLAY_SIDE, config)
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
    return _encode(Image.fromarray(mixed.round().astype(np.uint8)), "PNG")


def _encode(image: Image.Image, kind: str, **options: int) -> bytes:
    """Write the image without the comments, profiles and tags that it came with."""
    image.info = {}
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _describe_non_image(stream: IO[bytes]) -> str:
    stream.seek(0)
    head = stream.read(1024)
    if not head:
        return "The file is empty."
    kind = "an SVG drawing" if b"<svg" in head.lower() else "not a picture, or damaged"
    return f"The file is {kind}. Send a {ACCEPTED}."
