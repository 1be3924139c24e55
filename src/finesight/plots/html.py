"""The report page: one HTML file that can be mailed, opened offline and kept, with everything inside it."""

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic
from finesight.plots.cards import STYLE as CARD_STYLE
from finesight.plots.cards import Card, draw_card

FOLD_ROWS = 15  # longer tables start folded
WEBP_SIDE = 16383  # the format allows no more
MUCH = 0.25  # line drawings stay PNG, photographs become WebP
MAX_ROWS = 500  # a folder of a hundred thousand unreadable files must not make a page no browser opens

# The policy forbids every request, so that a report stays what it was when it was written.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{contents}</header>
<main>
{sections}
</main>
<footer><p>Made by FineSight. Everything on this page is in this one file.</p></footer>
</body>
</html>
"""

STYLE = """
:root { --paper: #fff; --ink: #22262b; --faint: #646b74; --line: #e3e7ec; --band: #f6f8fa; --link: #1f6feb }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e3e6ea; --faint: #9aa2ac; --line: #2e343b; --band: #1c2025;
    --link: #6ea8ff }
  .sheet { filter: brightness(.92) }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2.5rem 1.25rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .75rem }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .75rem }
section { border-top: 1px solid var(--line); margin-top: 2.25rem; padding-top: 1.75rem }
p { max-width: 44rem; margin: 0 0 1rem; white-space: pre-line }
a { color: var(--link); text-decoration: none }
a:hover, a:focus { text-decoration: underline }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .95rem }
.scroll { overflow-x: auto; margin: 0 0 1.25rem }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .45rem 1.25rem .45rem .6rem; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; min-width: 4rem; overflow-wrap: normal }
th { color: var(--faint); font-weight: 600; white-space: nowrap }
tbody tr:nth-child(even) { background: var(--band) }
.number { text-align: right; white-space: nowrap }
summary { cursor: pointer; color: var(--link); margin-bottom: .75rem }
figure { margin: 0 0 1.75rem }
.sheet { overflow-x: auto; background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem; width: fit-content; max-width: 100% }
img { display: block; max-width: 100%; height: auto }
figcaption, footer { color: var(--faint); font-size: .92rem }
figcaption { margin-top: .5rem; max-width: 44rem }
footer { border-top: 1px solid var(--line); margin-top: 2.25rem; padding-top: 1rem }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem }
  .sheet img { max-width: max(100%, 44rem) }
}
@media print { figure, tr { break-inside: avoid } }
"""


@dataclass(frozen=True)
class Section:
    """A heading and, in this order, text (blank lines part paragraphs), a table, pictures, cards."""

    title: str
    text: str = ""
    table: Sequence[Mapping[str, object]] | None = None
    images: Sequence[tuple[str, bytes]] = ()  # (caption, PNG)
    cards: Sequence[Card] = ()


def build_report(path: Path, *, title: str, sections: Sequence[Section]) -> None:
    """Write the page, whole or not at all; a ``FineSightError`` says why it cannot be written."""
    links = "".join(f'<a href="#s{i}">{escape(s.title)}</a>\n' for i, s in enumerate(sections, 1))
    page = PAGE.format(
        title=escape(title),
        style=STYLE + (CARD_STYLE if any(section.cards for section in sections) else ""),
        contents=f'<nav aria-label="Contents">\n{links}</nav>\n' if len(sections) > 2 else "",
        sections="\n".join(_section(i, section) for i, section in enumerate(sections, 1)),
    )
    try:
        # File names that are not UTF-8 come as lone surrogates; they are shown as \udcXX instead of failing.
        write_atomic(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise FineSightError(
            f"The report could not be written to {path} ({error.strerror}): "
            "free space there, or choose a folder you may write to."
        ) from error


def replace_section(path: Path, section: Section) -> bool:
    """Put ``section`` in the place of the one with its title on a written page; return whether there is one."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError:
        return False
    heading = re.escape(f"<h2>{escape(section.title)}</h2>")
    found = re.search(rf'<section id="s(\d+)">\n{heading}.*?</section>', page, re.DOTALL)
    if found is None:
        return False
    new = _section(int(found[1]), section)
    write_atomic(path, (page[: found.start()] + new + page[found.end() :]).encode("utf-8", "backslashreplace"))
    return True


def html_fragment(title: str, sections: Sequence[Section]) -> str:
    """Return the sections without a page around them, for a notebook."""
    inside = "\n".join(_contents(section, "h4", compact=True) for section in sections)
    return f"<div>\n<h3>{escape(title)}</h3>\n{inside}\n</div>".encode("utf-8", "backslashreplace").decode()


def _section(number: int, section: Section) -> str:
    return f'<section id="s{number}">\n{_contents(section, "h2")}\n</section>'


def _contents(section: Section, heading: str, *, compact: bool = False) -> str:
    parts = [f"<{heading}>{escape(section.title)}</{heading}>"]
    parts += [f"<p>{escape(text.strip())}</p>" for text in section.text.split("\n\n") if text.strip()]
    if section.table and any(section.table):
        parts.append(html_table(section.table))
    parts += [html_figure(caption, png, compact) for caption, png in section.images]
    return "\n".join([*parts, *(draw_card(card) for card in section.cards)])


def html_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table; one of many rows is folded, and one of very many is cut, with a sentence that says so."""
    shown = rows[:MAX_ROWS]
    keys = dict.fromkeys(key for row in shown for key in row)
    columns = [_column(key, [row.get(key) for row in shown]) for key in keys]
    head, *body = ("".join(cells) for cells in zip(*columns, strict=True))
    lines = "\n".join(f"<tr>{line}</tr>" for line in body)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
    html = f'<div class="scroll" tabindex="0">\n{table}\n</div>'
    if len(rows) > len(shown):
        html += f"\n<p>{len(rows) - len(shown):,} more rows are not shown.</p>"
    if len(rows) > FOLD_ROWS:
        html = f"<details>\n<summary>Show {len(rows):,} rows</summary>\n{html}\n</details>"
    return html


def _column(key: str, values: Sequence[object]) -> list[str]:
    """Return the head and the cells of a column; its numbers share their decimals."""
    numbers = [number for number in map(_number, values) if number is not None]
    numeric = len(numbers) > 0 and len(numbers) == sum(value is not None for value in values)
    kind = ' class="number"' if numeric else ""
    decimals = _decimals([number for number in numbers if math.isfinite(number)])
    cells = [f"<td{kind}>{escape(_text(value, decimals))}</td>" for value in values]
    return [f'<th scope="col"{kind}>{escape(str(key))}</th>', *cells]


def _decimals(numbers: Sequence[float]) -> int:
    if all(number.is_integer() for number in numbers):
        return 0
    return 2 if max(map(abs, numbers)) >= 1 else 4


def _text(value: object, decimals: int) -> str:
    number = _number(value)
    if number is None:
        return "–" if value is None else str(value)
    return f"{number:,.{decimals}f}" if math.isfinite(number) else "–"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    return float(value)


def html_figure(caption: str, png: bytes, compact: bool = False) -> str:
    """Return a picture, on white in both themes, shown at the size in inches it was drawn for."""
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        mime, data = _smaller(image, png, 1 if compact else MUCH)
        scale = 96 / image.info.get("dpi", (96, 96))[0]
        size = f'width="{round(image.width * scale)}" height="{round(image.height * scale)}"'
    text = escape(caption)
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    sheet = f'<div class="sheet" tabindex="0"><img src="{source}" alt="{text}" {size}></div>'
    return f"<figure>\n{sheet}\n<figcaption>{text}</figcaption>\n</figure>"


def _smaller(image: Image.Image, png: bytes, share: float) -> tuple[str, bytes]:
    """Return the MIME type and the bytes: WebP where it has less than ``share`` of the bytes of the PNG, else that."""
    if max(image.size) > WEBP_SIDE:
        return "image/png", png
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=85)
    webp = buffer.getvalue()
    return ("image/webp", webp) if len(webp) < len(png) * share else ("image/png", png)
