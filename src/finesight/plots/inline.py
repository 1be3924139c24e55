"""Pictures and tables in HTML for notebooks: small, inside the page itself, with names escaped. No matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.data.decode import read_image_and_size
from finesight.errors import SkipImage

SIDE = 132  # pixels of the longest side of a thumbnail
QUALITY = 80
_GRID = "display:flex;flex-wrap:wrap;gap:10px;align-items:flex-start;margin:6px 0"
_TILE = "margin:0;text-align:left;font-size:12px;line-height:1.35"
_FAINT = "opacity:.7"


@dataclass(frozen=True)
class Tile:
    """A picture with a line in bold and one in plain letters below it; without a picture, a sentence says so."""

    picture: Image.Image | NDArray[np.uint8] | None
    title: str = ""
    text: str = ""


def printable_html(text: str) -> str:
    """Return text for HTML: escaped, and bytes of file names that are no UTF-8 as \\udcXX."""
    return escape(text.encode("utf-8", "backslashreplace").decode())


def read_picture(file: str | Path | None, side: int = SIDE) -> Image.Image | None:
    """Return the upright picture of a file, perhaps smaller but with ``side`` pixels or more; None if it is gone."""
    try:
        return None if file is None else read_image_and_size(file, at_least=side)[0]
    except (SkipImage, OSError):
        return None


def data_uri(picture: Image.Image | NDArray[np.uint8], side: int = SIDE) -> str:
    """Return a thumbnail as the address of an ``<img>``; nothing is fetched from anywhere."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image = image.convert("RGB")  # also a copy: the caller's picture keeps its size
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_row(tiles: Iterable[Tile], side: int = SIDE) -> str:
    """Return pictures side by side, each with its words; they wrap where there is no room."""
    return f'<div style="{_GRID}">{"".join(_tile(tile, side) for tile in tiles)}</div>'


def picture_rows(words: str, rows: Sequence[Sequence[Tile]], note: str = "", side: int = SIDE) -> str:
    """Return a sentence, rows of pictures, and a note in faint letters."""
    below = f'<p style="{_FAINT}">{printable_html(note)}</p>' if note else ""
    return f"<div><p>{printable_html(words)}</p>{''.join(picture_row(row, side) for row in rows)}{below}</div>"


def _tile(tile: Tile, side: int) -> str:
    title, text = printable_html(tile.title), printable_html(tile.text)
    alt = " ".join(filter(None, (title, text)))
    if tile.picture is None:
        shown = f'<div style="width:{side}px;height:{side}px;border:1px dashed;{_FAINT}">not to be read now</div>'
    else:
        style = f"display:block;border-radius:4px;margin:0;width:{_width(tile.picture, side)}px"
        shown = f'<img src="{data_uri(tile.picture, side)}" alt="{alt}" style="{style}">'
    words = f"<b>{title}</b><br>" if title else ""
    words += f'<span style="overflow-wrap:anywhere">{text}</span>'
    return f'<figure style="{_TILE};max-width:{side}px">{shown}<figcaption>{words}</figcaption></figure>'


def _width(picture: Image.Image | NDArray[np.uint8], side: int) -> int:
    """Return the width at which the longest side has ``side`` pixels, of small pictures too."""
    height, width = picture.size[::-1] if isinstance(picture, Image.Image) else picture.shape[:2]
    return max(1, round(side * int(width) / max(int(width), int(height))))
