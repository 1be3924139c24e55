"""Cards of a report page: small pictures in a row with words that can be read, searched and copied."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

STYLE = """
.card { border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; margin: 0 0 1rem }
.card h3 { font-size: 1rem; line-height: 1.4; margin: 0 0 .15rem; font-weight: 600 }
.card p { margin: 0 0 .6rem; color: var(--faint); font-size: .92rem; max-width: none }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 0; padding: 0; list-style: none }
.tiles li { width: 7.5rem; font-size: .8rem; line-height: 1.35 }
.tiles li.apart { border-left: 1px solid var(--line); padding-left: .75rem; width: 8.25rem }
.tiles .frame { display: flex; align-items: center; justify-content: center; height: 7.5rem;
  background: var(--band); border-radius: 6px; margin-bottom: .3rem; border-bottom: 4px solid var(--line) }
.tiles .good .frame { border-bottom-color: #1b9e4b }
.tiles .bad .frame { border-bottom-color: #d62728 }
.tiles img { border-radius: 4px }
.tiles span { display: block; color: var(--faint) }
"""
MARKS = ("", "good", "bad")


@dataclass(frozen=True)
class Tile:
    """A small picture with a line below it and fainter ones below that; ``mark`` colors its edge."""

    picture: Image.Image
    name: str
    notes: Sequence[str] = ()
    mark: str = ""  # one of MARKS
    apart: bool = False  # with a line before it


@dataclass(frozen=True)
class Card:
    """A title, a sentence and a row of pictures."""

    title: str
    text: str
    tiles: Sequence[Tile]


def draw_card(card: Card) -> str:
    """Return a card as HTML; its pictures are in it."""
    text = f"<p>{escape(card.text)}</p>\n" if card.text else ""
    tiles = "\n".join(map(_tile, card.tiles))
    return (
        f'<article class="card">\n<h3>{escape(card.title)}</h3>\n{text}<ul class="tiles">\n{tiles}\n</ul>\n</article>'
    )


def _tile(tile: Tile) -> str:
    buffer = io.BytesIO()
    tile.picture.save(buffer, "WEBP", quality=80)
    source = f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    size = f'width="{tile.picture.width}" height="{tile.picture.height}"'
    image = f'<img src="{source}" alt="{escape(tile.name)}" {size} loading="lazy">'
    notes = "".join(f"<span>{escape(note)}</span>" for note in tile.notes if note)
    classes = " ".join(filter(None, (tile.mark, "apart" if tile.apart else "")))
    return f'<li class="{classes}"><div class="frame">{image}</div>{escape(tile.name)}{notes}</li>'
