"""Decode an image file to an upright 8-bit RGB picture, or raise ``SkipImage`` with the reason why not.

It reads what folders hold in practice: scans in 16 bits, palettes with transparency, CMYK from print, phone photos
with an orientation tag, half downloads. No other exception is raised. Files may be hostile: ``decode_limits`` says what
they may cost.
"""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from finesight.data.decode_limits import (
    BUDGET,
    FOLDER_LIMITS,
    NOTICEABLE_BYTES,
    DecodeLimits,
    LimitedReads,
    decode_cost,
    too_large,
)
from finesight.errors import FineSightError, SkipImage
from finesight.io.children import ChildEnded, run_module
from finesight.io.memory import give_back_memory

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
HEAVY_SIDE = 2048  # that a picture which is much work keeps of its short side, where nobody says how much is needed

# Only these decoders are tried: the others Pillow has are not wanted, and one of them (EPS) starts a program.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ORIENTATION_TAG = 0x0112
ROWS = 256  # of a large picture, converted at a time
FEW_PIXELS = 2**22  # converted at once
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreachableFile(SkipImage):
    """The file cannot be read now: it is missing, or there is no permission, or a disk error.

    Unlike damage to the picture this may pass while the file stays the same, so it must not be remembered.
    """


def read_image(file: str | Path | IO[bytes]) -> Image.Image:
    """Return the first frame as upright RGB, or raise ``SkipImage``. One that is much work comes smaller."""
    return read_image_and_size(file)[0]


def read_image_and_size(
    file: str | Path | IO[bytes],
    at_least: int | None = None,
    trim: int = 0,
    limits: DecodeLimits = FOLDER_LIMITS,
) -> tuple[Image.Image, tuple[int, int]]:
    """Return the first frame as upright RGB and the upright (width, height) of the file, or raise ``SkipImage``.

    With ``at_least`` a JPEG is decoded at 1/2, 1/4 or 1/8 as long as both sides keep so many pixels, which saves most
    of the time; the picture is then smaller than the size that is returned. So is a picture of another format that is
    much work: it is decoded in a process of its own, made smaller there, and ended when it takes too long. ``trim``
    rows are cut off the bottom of the upright picture, and off the height that is returned.
    """
    with _reasons(limits), _open(file) as stream:
        image, shrunk = _open_image(stream, at_least, trim, limits)
        with image:
            cost = decode_cost(image, shrunk.size, stream, limits)
            with BUDGET.hold(cost.bytes):
                if not cost.light:
                    return _decode_elsewhere(stream, at_least or HEAVY_SIDE, trim, limits)
                decoded = _decode(image, shrunk, trim, 1)
        if cost.bytes > NOTICEABLE_BYTES:
            give_back_memory()
        return decoded


def decode_small(
    stream: IO[bytes], at_least: int, trim: int, limits: DecodeLimits
) -> tuple[Image.Image, tuple[int, int]]:
    """Do what ``read_image_and_size`` does for a picture that is much work: with little memory, and in this process."""
    with _reasons(limits):
        image, shrunk = _open_image(stream, at_least, trim, limits)
        with image:
            short = min(shrunk.size) - trim
            return _decode(image, shrunk, trim, 1 if shrunk.applies else max(short // at_least, 1))


@contextmanager
def _reasons(limits: DecodeLimits) -> Iterator[None]:
    """Turn what Pillow and the system raise into ``SkipImage``."""
    try:
        yield
    except SkipImage:
        raise
    except Image.DecompressionBombError:
        raise too_large(limits.pixels) from None
    except MemoryError:
        raise UnreachableFile("not enough memory to decode it") from None
    except OSError as error:
        if error.errno is None:  # Pillow's own complaint about the content
            raise SkipImage(_damage(error)) from None
        raise UnreachableFile(os_reason(error)) from None
    except Exception as error:  # Pillow's parsers raise nearly anything on bad bytes
        raise SkipImage(_damage(error)) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn an opened picture into upright 8-bit RGB: transparency becomes white, 16-bit and float values are scaled."""
    try:
        image.load()
        rgb, orientation = _eight_bit_rgb(image), _orientation(image)
        return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb
    except Exception as error:
        raise SkipImage(_damage(error)) from None


@contextmanager
def open_light(file: str | Path) -> Iterator[Image.Image]:
    """Open a picture that is decoded in this process, as it is; raise ``SkipImage`` if that is much work."""
    with _reasons(FOLDER_LIMITS), _open(file) as stream:
        image, shrunk = _open_image(stream, None, 0, FOLDER_LIMITS)
        with image:
            cost = decode_cost(image, shrunk.size, stream, FOLDER_LIMITS)
            if not cost.light:
                raise SkipImage("too much work to decode (possible decompression bomb)")
            with BUDGET.hold(cost.bytes):
                yield image


def read_mask(file: str | Path) -> NDArray[np.bool_]:
    """Read an object mask as (H, W): true where a pixel or palette index is not zero. Alpha is ignored."""
    with open_light(file) as image:
        values = np.asarray(image)
    values = values.reshape(*values.shape[:2], -1)  # (H, W) or (H, W, bands) -> (H, W, bands)
    bands = values.shape[2]
    colors = values[:, :, : bands - (bands in (2, 4))]  # without the A of LA and RGBA
    mask: NDArray[np.bool_] = (colors != 0).any(axis=2)
    return mask


@contextmanager
def _open(file: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a stream that can be read twice."""
    from finesight.data.places import is_place, read_place

    if not isinstance(file, (str, os.PathLike)):
        yield file if file.seekable() else io.BytesIO(file.read())
    elif is_place(file):
        yield io.BytesIO(read_place(file))
    else:
        with open(file, "rb") as stream:
            yield stream


@dataclass(frozen=True)
class _Shrunk:
    """The size of a file, and how many times smaller it is decoded: of JPEGs alone."""

    size: tuple[int, int]
    times: int
    applies: bool


def _open_image(
    stream: IO[bytes], at_least: int | None, trim: int, limits: DecodeLimits
) -> tuple[Image.Image, _Shrunk]:
    """Read the header and let a JPEG be decoded small."""
    try:
        image = Image.open(cast(IO[bytes], LimitedReads(stream, limits.reads)), formats=FORMATS)
    except UnidentifiedImageError:
        empty = stream.seek(0, io.SEEK_END) == 0
        raise SkipImage("empty file (0 bytes)" if empty else "not an image, or damaged") from None
    size, is_jpeg = image.size, image.format in ("JPEG", "MPO")
    if size[0] * size[1] > limits.pixels:
        raise too_large(limits.pixels)
    times = 1
    if at_least is not None and is_jpeg:
        drafted = image.draft(None, (at_least + trim, at_least + trim))
        times = 1 if drafted is None else round(size[0] / drafted[1][2])  # the box it fills is not rounded to pixels
    return image, _Shrunk(size, times, is_jpeg)


def _decode(image: Image.Image, shrunk: _Shrunk, trim: int, factor: int) -> tuple[Image.Image, tuple[int, int]]:
    """Return the upright RGB picture, ``factor`` times smaller than decoded, and the upright size of the file."""
    image.load()
    width, height = shrunk.size if shrunk.applies else image.size  # Pillow turns TIFFs while it loads them
    orientation = _orientation(image)
    rgb = _eight_bit_rgb(image, factor)
    if orientation in _UPRIGHT:
        rgb = rgb.transpose(_UPRIGHT[orientation])
        if orientation >= 5:
            width, height = height, width
    scale = shrunk.times * factor
    return (_trim_rows(rgb, height, trim, scale) if trim else rgb), (width, height - trim)


def _decode_elsewhere(
    stream: IO[bytes], at_least: int, trim: int, limits: DecodeLimits
) -> tuple[Image.Image, tuple[int, int]]:
    """Return what ``decode_small`` returns in a process of its own."""
    stream.seek(0)
    is_file = isinstance(stream, io.BufferedReader)
    settings = json.dumps([at_least, trim, asdict(limits)])
    try:
        child = run_module(
            "finesight.data.decode_process", [settings], stream if is_file else stream.read(), limits.patience
        )
    except ChildEnded as error:  # the machine may have been busy
        raise UnreachableFile(f"decoding it was ended: {error}") from None
    if child.returncode == -signal.SIGXCPU:
        raise SkipImage(f"decoding it takes longer than {limits.seconds:g} seconds (possible decompression bomb)")
    head, _, pixels = child.stdout.partition(b"\n")
    if child.returncode or not head:
        raise SkipImage("decoding it failed: it takes too much memory, or is damaged")
    answer = json.loads(head)
    if "reason" in answer:
        raise (UnreachableFile if answer["passes"] else SkipImage)(answer["reason"])
    return Image.frombytes("RGB", answer["shown"], pixels), tuple(answer["size"])


def _trim_rows(image: Image.Image, height: int, trim: int, scale: int) -> Image.Image:
    """Cut off the rows that show any of the last ``trim`` rows of the file's ``height``."""
    if height <= trim:
        raise SkipImage(f"only {height} pixels high, and the bottom {trim} are cut off")
    return image.crop((0, 0, image.width, (height - trim) // scale))


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image that is loaded: Pillow turns TIFFs while it loads them, and then removes
    their tag. Broken EXIF is ignored.
    """
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return 1


def _eight_bit_rgb(image: Image.Image, factor: int = 1) -> Image.Image:
    """Return the picture in RGB, so many times smaller. A large one is converted some rows at a time."""
    if image.mode.startswith("I;16"):
        # The high byte, as Pillow itself does with 16-bit color.
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_squeeze(np.asarray(image)))
    width, height = image.size
    if factor == 1 and (image.mode == "RGB" or width * height <= FEW_PIXELS):
        return _flatten(image)
    rgb = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    step = max(ROWS // factor, 1) * factor
    for top in range(0, height, step):
        rows = _flatten(image.crop((0, top, width, min(top + step, height))))
        rgb.paste(rows if factor == 1 else rows.reduce(factor), (0, top // factor))
    return rgb


def _flatten(image: Image.Image) -> Image.Image:
    """Return the picture in RGB, on white where it is transparent."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _squeeze(values: NDArray[np.int32] | NDArray[np.float32]) -> NDArray[np.uint8]:
    """Scale 32-bit integers and floats to 8 bits. They have no fixed range: the smallest usual one is taken.

    Some rows are converted at a time: in double precision a large picture would take more than a gigabyte.
    """
    starts = range(0, len(values), ROWS)
    ends = [(block.min(), block.max()) for block in (_finite(values[start : start + ROWS]) for start in starts)]
    low, high = float(min(least for least, _ in ends)), float(max(most for _, most in ends))
    squeezed = np.empty(values.shape, np.uint8)
    for start in starts:
        finite = _finite(values[start : start + ROWS])
        if low < 0 or high > 65535:
            finite = (finite - low) * (255 / max(high - low, 1e-12))
        elif high > 255:
            finite = np.floor(finite / 256)
        elif high <= 1 and values.dtype.kind == "f":
            finite = finite * 255
        squeezed[start : start + ROWS] = np.rint(finite)
    return squeezed


def _finite(values: NDArray[np.int32] | NDArray[np.float32]) -> NDArray[np.float64]:
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _damage(error: Exception) -> str:
    return f"damaged image: {' '.join(str(error).split()) or type(error).__name__}"


def os_reason(error: OSError) -> str:
    """Return the words of the file system, e.g. "permission denied", without the path."""
    return error.strerror.lower() if error.strerror else _damage(error)


@contextmanager
def explain_os_errors(what: str, instead: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``FineSightError`` that says what cannot be done, why, and what to do instead."""
    try:
        yield
    except OSError as error:
        raise FineSightError(f"{what}: {os_reason(error)}; {instead}") from error
