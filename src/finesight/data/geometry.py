"""Map boxes, points and masks of an original picture to its cached one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from finesight.data.decode import read_image_and_size

LONGEST = 3  # a panorama keeps its middle, this many times as long as wide: its short side decides the memory


def cache_side(resolution: int) -> int:
    """Return the short side kept for a training resolution: 8/7 of it, as the paper resizes to 256 and crops 224."""
    return -(-resolution * 256 // 224)


@dataclass(frozen=True)
class Geometry:
    """How a cached picture was cut out of the upright original: a center crop (only of panoramas), then a resize.

    The original is the file without the ``trim`` rows that were cut off its bottom.
    """

    original: tuple[int, int]  # width, height
    crop: tuple[float, float, float, float]  # x, y, width, height in original pixels
    size: tuple[int, int]  # height, width of the cached image
    trim: int = 0

    @classmethod
    def fit(cls, width: int, height: int, side: int, trim: int = 0) -> Geometry:
        """Return the geometry of an original of this size whose short side becomes ``side``."""
        short = min(width, height)
        crop_w, crop_h = min(width, LONGEST * short), min(height, LONGEST * short)
        crop = ((width - crop_w) / 2, (height - crop_h) / 2, float(crop_w), float(crop_h))
        return cls((width, height), crop, (round(crop_h * side / short), round(crop_w * side / short)), trim)

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
        cached: NDArray[np.bool_] = np.asarray(self.resize(self.trim_rows(picture))) >= 128
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
        """Crop and resize (bilinear, antialiased) the original, or the original at another scale."""
        x, y, width, height = self.crop
        sx, sy = image.width / self.original[0], image.height / self.original[1]
        box = (x * sx, y * sy, min((x + width) * sx, image.width), min((y + height) * sy, image.height))
        return image.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR, box=box)


def read_resized(file: str | Path | IO[bytes], side: int, trim: int = 0) -> tuple[NDArray[np.uint8], Geometry]:
    """Read the pixels (h, w, 3) that the cache keeps of a file: ``trim`` rows cut off, the short side ``side``."""
    image, (width, height) = read_image_and_size(file, 2 * side, trim)
    geometry = Geometry.fit(width, height, side, trim)
    return np.asarray(geometry.resize(image)), geometry
