"""Drawn photos that something is wrong with."""

from __future__ import annotations

import numpy as np
from PIL import Image

SIDE = 96
COLORS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}
WRONG = "green/photo-03.png"  # shows a red one
MIRRORED, COPIED, DARK, BLURRED = "red/mirror.png", "blue/=copy.png", "blue/dark.png", "green/blurred.png"


def photo(color: tuple[int, int, int], seed: int) -> Image.Image:
    """Draw patches and a grain around one color; no two are the same picture."""
    random = np.random.default_rng(seed)
    coarse = random.integers(-45, 46, (8, 8, 1)) + np.array(color)
    image = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    pixels = np.asarray(image, np.int64) + random.integers(-12, 13, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
