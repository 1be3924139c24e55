"""The one way a picture becomes the square view that a network sees; without torch, as searching needs none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.data.decode import read_image_and_size, to_rgb
from finesight.data.decode_limits import FOLDER_LIMITS, DecodeLimits
from finesight.data.geometry import Framing, Geometry, as_framing
from finesight.errors import FineSightError, SkipImage
from finesight.features.types import Box, View

if TYPE_CHECKING:
    from finesight.data.cache import DecodedCache

Picture = str | Path | Image.Image | IO[bytes]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
LEAST = 1e-6  # of a box's width and height


def picture_view(
    picture: Picture, framing: int | Framing, region: Box | None = None, limits: DecodeLimits = FOLDER_LIMITS
) -> View:
    """Return the center of a picture, resized and cropped as ``framing`` says; a number is the R of the usual one.

    With a ``region`` that the center does not hold, the crop moves, at the same scale, to where it holds as much of it
    as it can. A picture that cannot be read, or costs more than ``limits``, raises ``SkipImage``.
    """
    framing = as_framing(framing)
    resolution, scale = framing.resolution, framing.scale
    image, (width, height) = _open(picture, scale.side, limits)
    geometry = Geometry.fit(width, height, scale)
    spans: tuple[Span, Span] = (None, None)
    if region is not None:
        x, y, w, h = check_box(region)
        spans = (x * width, (x + w) * width), (y * height, (y + h) * height)
        geometry = _move(geometry, *spans)
    pixels = np.asarray(geometry.resize(image))
    left, top = _corner(geometry, resolution, *spans)
    window = np.ascontiguousarray(pixels[top : top + resolution, left : left + resolution])
    return View(window, _shares(geometry, left, top, resolution), width, height)


def require_view(picture: Picture, framing: int | Framing, region: Box | None = None) -> View:
    """Return ``picture_view``; a picture that cannot be read is a ``FineSightError``."""
    try:
        return picture_view(picture, framing, region)
    except SkipImage as skip:
        raise FineSightError(f"{picture} cannot be used: {skip}") from None


def cached_pixels(cache: DecodedCache, indices: Iterable[int], resolution: int) -> NDArray[np.uint8]:
    """Return the views of images in the decoded cache, which are resized already. -> (N, R, R, 3)"""
    return np.stack([center_crop(cache.image(int(i)), resolution) for i in indices])


def center_crop(pixels: NDArray[Any], resolution: int) -> NDArray[Any]:
    """Return the center R × R pixels of a decoded image or mask, no resampling. (h, w, ...) -> (R, R, ...)"""
    if min(pixels.shape[:2]) < resolution:
        raise ValueError(
            f"a center view of {resolution} px needs images at least as large, got {min(pixels.shape[:2])} px"
        )
    top, left = (_center(size, resolution) for size in pixels.shape[:2])
    return pixels[top : top + resolution, left : left + resolution]


def center_box(width: int, height: int, framing: int | Framing) -> Box:
    """Return where the view of a whole picture lies in it, without reading the picture."""
    framing = as_framing(framing)
    geometry, side = Geometry.fit(width, height, framing.scale), framing.resolution
    return _shares(geometry, *_corner(geometry, side, None, None), side)


def region_share(view: View, region: Box) -> NDArray[np.float32]:
    """Return the share of each pixel of a view that the region covers. -> (R, R)"""
    side = view.pixels.shape[0]
    x, y, width, height = region
    left, top, view_width, view_height = view.box
    columns = _covered((x - left) / view_width * side, (x + width - left) / view_width * side, side)
    rows = _covered((y - top) / view_height * side, (y + height - top) / view_height * side, side)
    share: NDArray[np.float32] = (rows[:, None] * columns[None, :]).astype(np.float32)  # (R, 1) * (1, R) -> (R, R)
    return share


def check_box(box: Box) -> Box:
    """Return the box clipped to the picture; one that is empty or outside is a ``FineSightError``."""
    x, y, width, height = box
    inside = x >= 0 and y >= 0 and x + width <= 1 + LEAST and y + height <= 1 + LEAST
    if not all(map(math.isfinite, box)) or not inside or width < LEAST or height < LEAST:
        raise FineSightError(
            f"The box {', '.join(f'{value:g}' for value in box)} is not in the picture: it is x,y,width,height as "
            "shares of the picture, for example 0.25,0.1,0.5,0.4."
        )
    return x, y, min(width, 1 - x), min(height, 1 - y)


def parse_box(text: str) -> Box:
    """Read a box as it is typed: ``0.25,0.1,0.5,0.4``. Anything else is a ``FineSightError``."""
    try:
        x, y, width, height = map(float, text.split(","))
    except ValueError:
        raise FineSightError(
            f"The box {text!r} is not four numbers: x,y,width,height as shares of the picture, for example "
            "0.25,0.1,0.5,0.4."
        ) from None
    return check_box((x, y, width, height))


Span = tuple[float, float] | None  # where a region begins and ends along one side


def _open(picture: Picture, side: int, limits: DecodeLimits) -> tuple[Image.Image, tuple[int, int]]:
    """Return the upright RGB image, perhaps decoded at a smaller scale, and the size of the picture itself."""
    if isinstance(picture, Image.Image):
        upright = to_rgb(picture)
        return upright, upright.size
    return read_image_and_size(picture, at_least=2 * side, limits=limits)  # as for the cache


def _move(geometry: Geometry, across: Span, down: Span) -> Geometry:
    """Move the part of a long panorama that is kept, by default its middle, to the region."""
    x, y, width, height = geometry.crop
    x = _held(x, width, geometry.original[0], across)
    y = _held(y, height, geometry.original[1], down)
    return replace(geometry, crop=(x, y, width, height))


def _corner(geometry: Geometry, resolution: int, across: Span, down: Span) -> tuple[int, int]:
    """Return left and top of the crop in the resized picture."""
    x, y, width, height = geometry.crop
    starts = []
    for size, begin, length, span in ((geometry.size[1], x, width, across), (geometry.size[0], y, height, down)):
        center = _center(size, resolution)
        scale = size / length
        within = None if span is None else ((span[0] - begin) * scale, (span[1] - begin) * scale)
        start = _held(center, resolution, size, within)
        starts.append(math.ceil(start) if start > center else math.floor(start))  # towards the region
    return starts[0], starts[1]


def _center(size: int, resolution: int) -> int:
    return round((size - resolution) / 2)  # half to even, as torchvision


def _held(start: float, length: float, room: float, span: Span) -> float:
    """Return the start nearest to ``start`` at which a window holds as much of ``span`` as it can."""
    if span is None:
        return start
    low, high = sorted((span[0], span[1] - length))
    return min(max(min(max(start, low), high), 0.0), room - length)


def _shares(geometry: Geometry, left: int, top: int, side: int) -> Box:
    """Return a square of the resized picture as shares of the original."""
    x, y, width, height = geometry.crop
    (w, h), (rows, columns) = geometry.original, geometry.size
    across, down = width / columns, height / rows  # pixels of the original for one of the resized picture
    return (x + left * across) / w, (y + top * down) / h, side * across / w, side * down / h


def _covered(low: float, high: float, side: int) -> NDArray[np.float64]:
    """Return the share of each of ``side`` unit steps that lies between ``low`` and ``high``."""
    steps = np.arange(side)
    share: NDArray[np.float64] = np.clip(np.minimum(high, steps + 1) - np.maximum(low, steps), 0, 1)
    return share
