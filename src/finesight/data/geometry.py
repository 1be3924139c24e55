"""Map boxes, points and masks of an original picture to its cached one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from finesight.data.decode import read_image_and_size

LONGEST = 3  # a panorama keeps its middle, this many times as long as wide: its short side decides the memory
Interpolation = Literal["bilinear", "bicubic"]
CropMode = Literal["center", "squash"]
CROP_PCT = 0.875  # 7/8: 224 of 256 px
MAX_SIDE = 8192  # pixels that a network is given at most, on a side
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}  # both antialiased


def cache_side(resolution: int) -> int:
    """Return the short side kept for a training resolution: 8/7 of it, as the paper resizes to 256 and crops 224."""
    return -(-resolution * 256 // 224)


@dataclass(frozen=True)
class Scale:
    """The size that whole pictures are resized to, and how."""

    side: int  # of the short side; of both sides if pictures are squashed
    interpolation: Interpolation = "bilinear"
    squash: bool = False

    def __str__(self) -> str:
        """Return the size alone where the rest is as in all versions: keys of the cache stay as they were."""
        filter = "" if self.interpolation == "bilinear" else f"-{self.interpolation}"
        return f"{self.side}{filter}{'-squash' * self.squash}"


@dataclass(frozen=True)
class Framing:
    """How a picture becomes the square that a network sees: resized, then R × R pixels cropped from the center.

    ``crop_pct`` is R as a share of the resized short side, as timm has it. With ``squash`` both sides are resized to
    that, whatever the shape of the picture, so that a share of 1 shows all of it.
    """

    resolution: int
    crop_pct: float = CROP_PCT
    interpolation: Interpolation = "bilinear"
    crop_mode: CropMode = "center"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Framing:
        """Return the framing that an encoder's settings tell; those of earlier versions say the resolution only.

        Raises ``KeyError``, ``TypeError`` or ``ValueError`` if they are no settings of an encoder.
        """
        named = {field.name: settings[field.name] for field in fields(cls) if field.name in settings}
        framing = cls(**{**named, "resolution": int(settings["resolution"])})
        fits = 1 <= framing.resolution <= MAX_SIDE and 0 < float(framing.crop_pct) <= 1
        if not fits or framing.interpolation not in _FILTERS or framing.crop_mode not in get_args(CropMode):
            raise ValueError(f"no network is given pictures like this: {framing}")
        return framing

    @property
    def scale(self) -> Scale:
        """The size before the crop: timm's, but rounded up at 7/8 of it, as the cache of training has it."""
        usual = self.crop_pct == CROP_PCT
        side = cache_side(self.resolution) if usual else math.floor(self.resolution / self.crop_pct)
        return Scale(side, self.interpolation, self.crop_mode == "squash")


@dataclass(frozen=True)
class Geometry:
    """How a cached picture was made of the upright original: a center crop (only of panoramas), then a resize.

    The original is the file without the ``trim`` rows that were cut off its bottom.
    """

    original: tuple[int, int]  # width, height
    crop: tuple[float, float, float, float]  # x, y, width, height in original pixels
    size: tuple[int, int]  # height, width of the cached image
    trim: int = 0
    interpolation: Interpolation = "bilinear"

    @classmethod
    def fit(cls, width: int, height: int, scale: int | Scale, trim: int = 0) -> Geometry:
        """Return the geometry of an original of this size; a number is the side of the usual scale."""
        scale = as_scale(scale)
        side, short = scale.side, min(width, height)
        if scale.squash:
            whole = (0.0, 0.0, float(width), float(height))
            return cls((width, height), whole, (side, side), trim, scale.interpolation)
        crop_w, crop_h = min(width, LONGEST * short), min(height, LONGEST * short)
        crop = ((width - crop_w) / 2, (height - crop_h) / 2, float(crop_w), float(crop_h))
        size = round(crop_h * side / short), round(crop_w * side / short)
        return cls((width, height), crop, size, trim, scale.interpolation)

    def points(self, xy: ArrayLike) -> NDArray[np.float32]:
        """Map (..., 2) x, y in original pixels to cached pixels, not clipped."""
        x, y, width, height = self.crop
        scale = np.array([self.size[1] / width, self.size[0] / height])
        cached: NDArray[np.float32] = ((np.asarray(xy, np.float64) - (x, y)) * scale).astype(np.float32)
        return cached

    def box(self, box: ArrayLike) -> NDArray[np.float32]:
        """Map x, y, width, height in original pixels to cached pixels, clipped to the cached image."""
        x, y, width, height = np.asarray(box, np.float64)
        corners = self.points([[x, y], [x + width, y + height]])
        low, high = np.clip(corners, 0, [self.size[1], self.size[0]])
        return np.concatenate([low, high - low]).astype(np.float32)

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Map a mask of the whole file, at any scale, to (h, w): true where half the area of a pixel is object."""
        picture = Image.fromarray(mask.astype(np.uint8) * 255)
        linear = replace(self, interpolation="bilinear")  # which never leaves [0, 1]
        cached: NDArray[np.bool_] = np.asarray(linear.resize(self.trim_rows(picture))) >= 128
        return cached

    def trim_rows(self, image: Image.Image) -> Image.Image:
        """Cut the trimmed rows off a picture of the whole file, at any scale."""
        height = self.original[1]
        rows = round(image.height * height / (height + self.trim))
        return image.crop((0, 0, image.width, max(rows, 1))) if self.trim else image

    def fill_box(self, box: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Turn a box in cached pixels into a mask (h, w): true where the center of a pixel lies in it."""
        x, y, width, height = box
        rows, columns = np.arange(self.size[0]) + 0.5, np.arange(self.size[1]) + 0.5
        inside_y = (rows >= y) & (rows < y + height)
        inside_x = (columns >= x) & (columns < x + width)
        inside: NDArray[np.bool_] = inside_y[:, None] & inside_x[None, :]  # (h, 1) & (1, w) -> (h, w)
        return inside

    def resize(self, image: Image.Image) -> Image.Image:
        """Crop and resize (antialiased) the original, or the original at another scale."""
        x, y, width, height = self.crop
        sx, sy = image.width / self.original[0], image.height / self.original[1]
        box = (x * sx, y * sy, min((x + width) * sx, image.width), min((y + height) * sy, image.height))
        return image.resize((self.size[1], self.size[0]), _FILTERS[self.interpolation], box=box)


def as_scale(scale: int | Scale) -> Scale:
    """Return the scale; a number is the short side of the usual one."""
    return Scale(scale) if isinstance(scale, int) else scale


def as_framing(framing: int | Framing) -> Framing:
    """Return the framing; a number is the resolution of the usual one."""
    return Framing(framing) if isinstance(framing, int) else framing


def read_resized(file: str | Path | IO[bytes], scale: int | Scale, trim: int = 0) -> tuple[NDArray[np.uint8], Geometry]:
    """Read the pixels (h, w, 3) that the cache keeps of a file: ``trim`` rows cut off, resized to the scale."""
    image, (width, height) = read_image_and_size(file, 2 * as_scale(scale).side, trim)
    geometry = Geometry.fit(width, height, scale, trim)
    return np.asarray(geometry.resize(image)), geometry
