"""Small pictures of image files, for sheets and pages."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from PIL import Image, ImageDraw

from finesight.data.decode import read_image_and_size
from finesight.errors import SkipImage

PAPER, INK, FAINT = "#ffffff", "#22262b", "#b6bcc4"


def read_thumbnail(file: Path | None, side: int, trim: int = 0) -> Image.Image:
    """Return a picture of at most ``side`` pixels, or a frame with the word "gone" if it cannot be read any more."""
    if file is not None:
        with suppress(SkipImage, OSError):
            picture = read_image_and_size(file, 2 * side, trim)[0]
            picture.thumbnail((side, side), Image.Resampling.LANCZOS)
            return picture
    frame = Image.new("RGB", (side, side), PAPER)
    ImageDraw.Draw(frame).rectangle((0, 0, side - 1, side - 1), outline=FAINT)
    ImageDraw.Draw(frame).text((side // 2, side // 2), "gone", FAINT, anchor="mm")
    return frame
