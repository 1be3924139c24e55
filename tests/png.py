"""Figures are judged by their pixels: decoded PNGs, looked at where something must be seen."""

import io

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def decode(png: bytes) -> Pixels:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def count(pixels: Pixels, color: str) -> int:
    wanted = np.rint(np.array(to_rgb(color)) * 255)
    return int((pixels == wanted).all(-1).sum())


def flat(value: int, height: int = 60, width: int = 60) -> Pixels:
    return np.full((height, width, 3), value, np.uint8)
