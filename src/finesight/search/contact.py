"""Draw contact sheets: small pictures of groups of images, as PNG files and as one page that loads nothing else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from finesight.data.thumbnails import INK, PAPER, read_thumbnail
from finesight.io.atomic import write_atomic
from finesight.plots.html import Section, build_report
from finesight.search.image_files import item_file

TILE, EDGE, TITLE = 112, 6, 26  # pixels: of a picture, between pictures, and of the title above a row
SHOWN = 12  # pictures of a group
ROWS = 12  # groups on a PNG sheet
PAGE_GROUPS = 200  # on the page: some 5 MB


@dataclass(frozen=True)
class SheetRow:
    """A group of images: its title, and the paths of those that are shown."""

    title: str
    paths: Sequence[str]


def write_sheets(
    folder: Path,
    name: str,
    title: str,
    words: str,
    root: str,
    rows: Sequence[SheetRow],
    *,
    pages: int = 50,
    page_groups: int = PAGE_GROUPS,
) -> list[Path]:
    """Write ``NAME.html`` and at most ``pages`` sheets ``NAME-01.png`` … of twelve groups each; return the files."""
    sections = [Section(title, words)]
    files: list[Path] = []
    drawn: list[Image.Image] = []
    for number, row in enumerate(rows[: max(page_groups, pages * ROWS)]):
        picture = _draw_row(root, row)
        if number < page_groups:
            caption = ", ".join(Path(path).name for path in row.paths[:3]) + (" …" if len(row.paths) > 3 else "")
            sections.append(Section(row.title, images=[(_plain(caption), _png(picture))]))
        drawn.append(picture)
        if len(files) < pages and (len(drawn) == ROWS or number == len(rows) - 1):
            files.append(folder / f"{name}-{len(files) + 1:02d}.png")
            sheet = Image.new("RGB", (picture.width, len(drawn) * picture.height + EDGE), PAPER)
            for n, one in enumerate(drawn):
                sheet.paste(one, (0, n * one.height))
            write_atomic(files[-1], _png(sheet))
            drawn = []
    if len(rows) > page_groups:
        more = f"{len(rows) - page_groups:,} smaller groups are not on this page; the table has all."
        sections[0] = Section(title, f"{words}\n\n{more}")
    page = folder / f"{name}.html"
    build_report(page, title=title, sections=sections)
    return [page, *files]


def _draw_row(root: str, row: SheetRow) -> Image.Image:
    """Draw a line of words above a line of pictures."""
    sheet = Image.new("RGB", (EDGE + SHOWN * (TILE + EDGE), TITLE + TILE + EDGE), PAPER)
    ImageDraw.Draw(sheet).text((EDGE, 6), _plain(row.title), INK, font=ImageFont.load_default(14))
    for column, path in enumerate(row.paths[:SHOWN]):
        tile = _read_tile(root, path)
        left = EDGE + column * (TILE + EDGE) + (TILE - tile.width) // 2
        sheet.paste(tile, (left, TITLE + (TILE - tile.height) // 2))
    return sheet


def _read_tile(root: str, path: str) -> Image.Image:
    """Return a picture as small as a tile, or a frame with the word "gone" if it cannot be read any more."""
    return read_thumbnail(item_file(root, path), TILE)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Return text that the font and the page can show."""
    return text.encode("utf-8", "backslashreplace").decode()
