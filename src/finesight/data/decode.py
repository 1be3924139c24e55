"""Decode an image file to an upright 8-bit RGB picture, or raise ``SkipImage`` with the reason why not.

It reads what folders hold in practice: scans in 16 bits, palettes with transparency, CMYK from print, phone photos
with an orientation tag, half downloads. No other exception is raised.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from finesight.errors import FineSightError, SkipImage

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
MAX_PIXELS = 178_956_970  # twice Pillow's warning threshold: where Pillow itself refuses

# Only these decoders are tried: the others Pillow has are not wanted, and one of them (EPS) starts a program.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_TOO_LARGE = f"too large: more than {MAX_PIXELS:,} pixels (possible decompression bomb)"
_ORIENTATION_TAG = 0x0112
ROWS = 256  # of a 32-bit picture, converted at a time
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
    """Return the first frame as upright RGB, or raise ``SkipImage``."""
    return read_image_and_size(file)[0]


def read_image_and_size(
    file: str | Path | IO[bytes], at_least: int | None = None, trim: int = 0
) -> tuple[Image.Image, tuple[int, int]]:
    """Return the first frame as upright RGB and the upright (width, height) of the file, or raise ``SkipImage``.

    With ``at_least`` a JPEG is decoded at 1/2, 1/4 or 1/8 as long as both sides keep so many pixels, which saves most
    of the time; the picture is then smaller than the size that is returned. ``trim`` rows are cut off the bottom of
    the upright picture, and off the height that is returned.
    """
    try:
        with _open(file) as stream:
            return _decode(stream, at_least, trim)
    except SkipImage:
        raise
    except Image.DecompressionBombError:
        raise SkipImage(_TOO_LARGE) from None
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
        return _eight_bit_rgb(_upright(image)[0])
    except Exception as error:
        raise SkipImage(_damage(error)) from None


def read_mask(file: str | Path) -> NDArray[np.bool_]:
    """Read an object mask as (H, W): true where a pixel or palette index is not zero. Alpha is ignored."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            values = np.asarray(image)
    except Exception as error:
        raise SkipImage(os_reason(error) if isinstance(error, OSError) else _damage(error)) from None
    values = values.reshape(*values.shape[:2], -1)  # (H, W) or (H, W, bands) -> (H, W, bands)
    bands = values.shape[2]
    colors = values[:, :, : bands - (bands in (2, 4))]  # without the A of LA and RGBA
    mask: NDArray[np.bool_] = (colors != 0).any(axis=2)
    return mask


def _open(file: str | Path | IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    return open(file, "rb") if isinstance(file, (str, os.PathLike)) else nullcontext(file)


def _decode(stream: IO[bytes], at_least: int | None, trim: int) -> tuple[Image.Image, tuple[int, int]]:
    try:
        image = Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        empty = stream.seekable() and stream.seek(0, io.SEEK_END) == 0
        raise SkipImage("empty file (0 bytes)" if empty else "not an image, or damaged") from None
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise SkipImage(_TOO_LARGE)
        shrinks = image.format in ("JPEG", "MPO")
        scale = 1 if at_least is None or not shrinks else _shrink(image, at_least + trim)
        image.load()
        upright, turned = _upright(image)
        rgb = _eight_bit_rgb(upright)
    if not shrinks:
        width, height = rgb.size
    elif turned:
        width, height = height, width
    return (_trim_rows(rgb, height, trim, scale) if trim else rgb), (width, height - trim)


def _shrink(image: Image.Image, at_least: int) -> int:
    """Let a JPEG be decoded small, and return how many times smaller."""
    width = image.width
    drafted = image.draft(None, (at_least, at_least))
    return 1 if drafted is None else round(width / drafted[1][2])  # the box it fills is not rounded to pixels


def _trim_rows(image: Image.Image, height: int, trim: int, scale: int) -> Image.Image:
    """Cut off the rows that show any of the last ``trim`` rows of the file's ``height``."""
    if height <= trim:
        raise SkipImage(f"only {height} pixels high, and the bottom {trim} are cut off")
    return image.crop((0, 0, image.width, (height - trim) // scale))


def _upright(image: Image.Image) -> tuple[Image.Image, bool]:
    """Apply the EXIF orientation, and return whether width and height change places. Broken EXIF is ignored.

    The image must be loaded: Pillow turns TIFFs while it loads them and then removes their tag.
    """
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        return image, False
    if orientation not in _UPRIGHT:
        return image, False
    return image.transpose(_UPRIGHT[orientation]), orientation >= 5


def _eight_bit_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # The high byte, as Pillow itself does with 16-bit color.
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        return Image.fromarray(_squeeze(np.asarray(image))).convert("RGB")
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
