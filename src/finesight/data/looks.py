"""Measure what makes a photograph hard to use: darkness, glare, lack of contrast, blur."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

SIDE = 128  # pixels of the short side at which pictures are compared
DARK, BRIGHT = 0.10, 0.92  # mean gray of 0 (black) to 1 (white)
FLAT = 0.03  # standard deviation of gray
BLURRED = 0.10  # of the strongest edges; see ``Looks.sharpness``


@dataclass(frozen=True)
class Looks:
    """Numbers about the gray picture, each from 0 to about 1."""

    brightness: float  # mean
    contrast: float  # standard deviation
    sharpness: float  # how much of the picture's range its strongest edges cross from one pixel to the next

    def reasons(self) -> Iterator[str]:
        """Yield what is wrong, in words; nothing for an ordinary photograph."""
        if self.brightness < DARK:
            yield "too dark"
        if self.brightness > BRIGHT:
            yield "too bright"
        if self.contrast < FLAT:
            yield "hardly any contrast"
        elif self.sharpness < BLURRED:
            yield "blurred"


def measure_looks(image: Image.Image) -> Looks:
    """Measure a picture, shrunk to a short side of ``SIDE`` pixels; a smaller one is measured as it is."""
    scale = SIDE / min(image.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    gray = np.asarray(image.convert("L"), np.float32) / 255
    low, high = np.percentile(gray, (1, 99))
    steps = np.concatenate([np.abs(np.diff(gray, axis=0)).ravel(), np.abs(np.diff(gray, axis=1)).ravel()])
    edge = float(np.percentile(steps, 99)) if steps.size else 0.0
    return Looks(float(gray.mean()), float(gray.std()), edge / max(float(high - low), 1e-3))
