"""A picture to the square part of it that the network sees, without torch: the pixels of the encoder's own view."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.data.decode import read_image_and_size, to_rgb
from finesight.data.geometry import Geometry, cache_side
from finesight.errors import FineSightError
from finesight.features.types import Box, View

Picture = str | Path | Image.Image | IO[bytes]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
LEAST = 1e-6  # of a box's width and height


def picture_view(picture: Picture, resolution: int, region: Box | None = None) -> View:
    """The center of a picture, as in evaluation; ``SkipImage`` says why a file cannot be used.

    With a ``region`` that the center does not hold, the window moves, at the same scale, to where it holds as much of
    it as it can.
    """
    image, (width, height) = _opened(picture, cache_side(resolution))
    geometry = Geometry.fit(width, height, cache_side(resolution))
    spans: tuple[Span, Span] = (None, None)
    if region is not None:
        x, y, w, h = checked_box(region)
        spans = (x * width, (x + w) * width), (y * height, (y + h) * height)
        geometry = _moved(geometry, *spans)
    pixels = np.asarray(geometry.resize(image))
    left, top = _corner(geometry, resolution, *spans)
    window = np.ascontiguousarray(pixels[top : top + resolution, left : left + resolution])
    return View(window, _shares(geometry, left, top, resolution), width, height)


def center_box(width: int, height: int, resolution: int) -> Box:
    """Where the view of a whole picture lies in it, without reading the picture."""
    geometry = Geometry.fit(width, height, cache_side(resolution))
    return _shares(geometry, *_corner(geometry, resolution, None, None), resolution)


def region_share(view: View, region: Box) -> NDArray[np.float32]:
    """The share of each pixel of a view that the region covers. -> (R, R)"""
    side = view.pixels.shape[0]
    x, y, width, height = region
    left, top, view_width, view_height = view.box
    columns = _covered((x - left) / view_width * side, (x + width - left) / view_width * side, side)
    rows = _covered((y - top) / view_height * side, (y + height - top) / view_height * side, side)
    share: NDArray[np.float32] = (rows[:, None] * columns[None, :]).astype(np.float32)  # (R, 1) * (1, R) -> (R, R)
    return share


def checked_box(box: Box) -> Box:
    """A box that lies in the picture and is not empty, or an error that says how one is given."""
    x, y, width, height = box
    inside = x >= 0 and y >= 0 and x + width <= 1 + LEAST and y + height <= 1 + LEAST
    if not all(map(math.isfinite, box)) or not inside or width < LEAST or height < LEAST:
        raise FineSightError(
            f"The box {', '.join(f'{value:g}' for value in box)} is not in the picture: it is x,y,width,height as "
            "shares of the picture, for example 0.25,0.1,0.5,0.4."
        )
    return x, y, min(width, 1 - x), min(height, 1 - y)


def parsed_box(text: str) -> Box:
    """A box as it is typed: ``0.25,0.1,0.5,0.4``."""
    try:
        x, y, width, height = map(float, text.split(","))
    except ValueError:
        raise FineSightError(
            f"The box {text!r} is not four numbers: x,y,width,height as shares of the picture, for example "
            "0.25,0.1,0.5,0.4."
        ) from None
    return checked_box((x, y, width, height))


Span = tuple[float, float] | None  # where a region begins and ends along one side


def _opened(picture: Picture, side: int) -> tuple[Image.Image, tuple[int, int]]:
    if isinstance(picture, Image.Image):
        upright = to_rgb(picture)
        return upright, upright.size
    return read_image_and_size(picture, at_least=2 * side)  # as ``read_resized``


def _moved(geometry: Geometry, across: Span, down: Span) -> Geometry:
    """Of a long panorama only the middle is kept: the part that is kept moves to the region."""
    x, y, width, height = geometry.crop
    x = _held(x, width, geometry.original[0], across)
    y = _held(y, height, geometry.original[1], down)
    return replace(geometry, crop=(x, y, width, height))


def _corner(geometry: Geometry, resolution: int, across: Span, down: Span) -> tuple[int, int]:
    """Left and top of the window in the resized picture."""
    x, y, width, height = geometry.crop
    starts = []
    for size, begin, length, span in ((geometry.size[1], x, width, across), (geometry.size[0], y, height, down)):
        center = round((size - resolution) / 2)  # half to even, as ``center_view``
        scale = size / length
        within = None if span is None else ((span[0] - begin) * scale, (span[1] - begin) * scale)
        start = _held(center, resolution, size, within)
        starts.append(math.ceil(start) if start > center else math.floor(start))  # towards the region
    return starts[0], starts[1]


def _held(start: float, length: float, room: float, span: Span) -> float:
    """The start of a window nearest to ``start`` at which it holds as much of ``span`` as it can."""
    if span is None:
        return start
    low, high = sorted((span[0], span[1] - length))
    return min(max(min(max(start, low), high), 0.0), room - length)


def _shares(geometry: Geometry, left: int, top: int, side: int) -> Box:
    x, y, width, height = geometry.crop
    (w, h), (rows, columns) = geometry.original, geometry.size
    across, down = width / columns, height / rows  # pixels of the original for one of the resized picture
    return (x + left * across) / w, (y + top * down) / h, side * across / w, side * down / h


def _covered(low: float, high: float, side: int) -> NDArray[np.float64]:
    """The share of each of ``side`` unit steps between ``low`` and ``high``."""
    steps = np.arange(side)
    share: NDArray[np.float64] = np.clip(np.minimum(high, steps + 1) - np.maximum(low, steps), 0, 1)
    return share
