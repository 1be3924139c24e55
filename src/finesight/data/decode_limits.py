"""What decoding a picture may cost, told by its header: pixels, scans, memory.

A file of a few hundred kilobytes can hold a picture of gigabytes, or one that takes minutes. What is beyond the limits
is refused before it is decoded. What is within them but much is decoded in a process of its own, which can be killed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from PIL import Image

from finesight.errors import SkipImage

MAX_PIXELS = 178_956_970  # twice Pillow's warning threshold: where Pillow itself refuses
LIGHT_WORK = 2**28  # pixels times scans: at most half a second
LIGHT_BYTES = 2**28
NOTICEABLE_BYTES = 2**26  # given back to the system at once
CHUNK = 1 << 20
START_OF_SCAN = b"\xff\xda"  # of a JPEG. Its compressed data never has these two bytes
PLAIN_TIFF = frozenset({"raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate"})
TILE_WIDTH, TILE_HEIGHT = 322, 323  # tags of a TIFF


@dataclass(frozen=True)
class DecodeLimits:
    """How much one picture may cost."""

    pixels: int = MAX_PIXELS
    work: int = 20 * MAX_PIXELS  # pixels times scans: progressive JPEGs of cameras and the web have about ten scans
    reads: int = 200_000  # of the file: taking a file of many small pieces apart takes minutes
    seconds: float = 30.0  # of processor time, in a process of its own

    @property
    def patience(self) -> float:
        """The seconds that we wait for that process: a busy machine is slower."""
        return 10 * self.seconds


FOLDER_LIMITS = DecodeLimits()  # for images of a folder


class LimitedReads:
    """A file that may be read a limited number of times.

    Pillow takes headers apart piece by piece: a file of a million tiny pieces would keep a thread busy for a minute, or
    for an hour where each piece is joined to those before.
    """

    def __init__(self, stream: IO[bytes], reads: int) -> None:
        self._stream, self._left = stream, reads
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise SkipImage("it is made of too many pieces")
        return self._stream.read(size)


@dataclass(frozen=True)
class DecodeCost:
    """What decoding a picture costs at most."""

    work: int  # pixels times scans
    bytes: int
    plain: bool  # whether the header tells all of it

    @property
    def light(self) -> bool:
        """Whether it can be decoded in this process."""
        return self.plain and self.work <= LIGHT_WORK and self.bytes <= LIGHT_BYTES


def too_large(pixels: int) -> SkipImage:
    """Return the refusal of a picture with more pixels than that."""
    return SkipImage(f"too large: more than {pixels:,} pixels (possible decompression bomb)")


def decode_cost(image: Image.Image, size: tuple[int, int], stream: IO[bytes], limits: DecodeLimits) -> DecodeCost:
    """Return the cost of a picture that has been opened and not decoded, or raise ``SkipImage`` if it is too much.

    ``size`` is that of the file: the picture may be about to be decoded smaller.
    """
    pixels, shown = size[0] * size[1], 8 * image.width * image.height  # as decoded, and as RGB
    if pixels > limits.pixels:
        raise too_large(limits.pixels)
    if image.format not in ("JPEG", "MPO"):
        return DecodeCost(pixels, shown * (2 if image.format == "WEBP" else 1), _is_plain(image))
    scans = _count_scans(stream)
    if pixels * scans > limits.work:
        words = f"{scans} scans of {pixels / 1e6:.0f} million pixels"
        raise SkipImage(f"too much work to decode: {words} (possible decompression bomb)")
    several = scans > 1 or "progressive" in image.info  # libjpeg then keeps all coefficients
    return DecodeCost(pixels * scans, shown + 2 * len(image.getbands()) * pixels * several, True)


def _is_plain(image: Image.Image) -> bool:
    """Return whether time and memory follow from the size: TIFFs may hold other formats, and tiles of any size."""
    if image.format != "TIFF":
        return True
    tags = getattr(image, "tag_v2", {})
    width, height = (tags.get(tag, 1) for tag in (TILE_WIDTH, TILE_HEIGHT))
    return image.info.get("compression") in PLAIN_TIFF and width * height * len(image.getbands()) <= LIGHT_BYTES // 8


def _count_scans(stream: IO[bytes]) -> int:
    """Return how many scans a JPEG may have; those of thumbnails and what looks like one in a comment count too."""
    place, count, last = stream.tell(), 0, b""
    stream.seek(0)
    while chunk := stream.read(CHUNK):
        count += chunk.count(START_OF_SCAN) + (last + chunk[:1] == START_OF_SCAN)
        last = chunk[-1:]
    stream.seek(place)
    return max(count, 1)


class MemoryBudget:
    """Bytes that all pictures being decoded may take together. What is larger than all of it is decoded alone."""

    def __init__(self, limit: int) -> None:
        self._limit, self._free, self._change = limit, limit, threading.Condition()

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Wait until so many bytes are free, and take them."""
        count = min(count, self._limit)
        with self._change:
            self._change.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._change:
                self._free += count
                self._change.notify_all()


def _budget() -> int:
    """Return a gigabyte, or an eighth of the memory of this machine if that is more."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        memory = 0
    return max(2**30, memory // 8)


BUDGET = MemoryBudget(_budget())
