"""The page of ``finesight clean``: every finding with pictures, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from finesight.curation.findings import KIND_WORDS, Cleaning, Copies, Copy, Neighbor, Outlier, Suspect
from finesight.data.sources import ImageSource
from finesight.data.thumbnails import read_thumbnail
from finesight.io.console import format_count, printable_line
from finesight.plots.cards import Card, Tile
from finesight.plots.html import Section, build_report

SHOWN = 100  # findings of a kind on the page; the table has all
GROUP_SHOWN = 8  # images of a group
SIDE = 112  # pixels of a picture
DECIDE = (
    "Nothing was changed. To correct the labels, open clean.csv in a spreadsheet and write into its column `decision`: "
    "relabel (the column `suggested` may be edited), drop, or keep. Then `finesight clean DATA --apply clean.csv "
    "-o labels.csv` writes a corrected list, which every command takes as --data."
)


def write_page(file: Path, found: Cleaning, title: str) -> None:
    """Write ``report.html``."""
    picture = _Pictures(found.source)
    sections = [Section("Summary", _summary(found), table=_counts(found))]
    if found.wrong is not None:
        words = (
            "The other images speak for another label. The percentage is a rough estimate of how probably the given "
            "label is wrong: it is for sorting, and may be far too low where classes look alike. "
            "Green: an image of the suggested class, red: of the given class."
        )
        cards = [_suspect(one, picture) for one in found.suspects[:SHOWN]]
        sections.append(_section("Suspected labels", words, cards, len(found.suspects)))
    words = "Images that show one picture. The first has the most pixels: keep that one."
    groups = sorted(found.duplicates, key=lambda group: (not group.leaks, not group.conflicts))
    sections.append(
        _section("Copies", words, [_copies(one, picture) for one in groups[:SHOWN]], len(found.duplicates), "group")
    )
    words = "Images that are like no other, or hard to use. The pictures behind the line are the most alike."
    cards = [_outlier(one, picture) for one in found.outliers[:SHOWN]]
    sections.append(_section("Outliers", words, cards, len(found.outliers)))
    if found.skipped:
        rows = [{"path": printable_line(path), "reason": reason} for path, reason in found.skipped]
        sections.append(Section("Files that were left out", "", table=rows))
    build_report(file, title=title, sections=sections)


def _summary(found: Cleaning) -> str:
    return "\n\n".join([found.source.describe().splitlines()[0], *found.notes, DECIDE])


def _counts(found: Cleaning) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    if found.wrong is not None:
        rows.append({"found": "suspected labels", "number": len(found.suspects)})
        expected = round(found.expected_errors)
        rows.append({"found": "wrong labels in all, roughly estimated", "number": expected})
    copies = sum(len(group.images) - 1 for group in found.duplicates)
    rows.append({"found": "copies that could go", "number": copies})
    if found.wrong is not None:
        conflicts = sum(group.conflicts for group in found.duplicates)
        rows.append({"found": "groups of copies with different labels", "number": conflicts})
    if found.source.splits is not None:
        leaks = sum(group.leaks for group in found.duplicates)
        rows.append({"found": "groups of copies in both train and test (leakage)", "number": leaks})
    return [*rows, {"found": "outliers", "number": len(found.outliers)}]


def _section(title: str, words: str, cards: Sequence[Card], total: int, noun: str = "image") -> Section:
    if not total:
        return Section(title, "None was found.")
    more = f" The first {len(cards):,} are shown; clean.csv has all." if total > len(cards) else ""
    return Section(title, f"{format_count(total, noun)}. {words}{more}", cards=cards)


class _Pictures:
    """Reads small pictures of a source."""

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __call__(self, image: int) -> Image.Image:
        return read_thumbnail(self.source.file(image), SIDE, self.source.trim)


Read = Callable[[int], Image.Image]


def _suspect(one: Suspect, picture: Read) -> Card:
    tiles = [Tile(picture(one.image), "this image", (f"given: {one.given}",))]
    for number, near in enumerate(one.neighbors):
        mark = "good" if near.label == one.suggested else "bad" if near.label == one.given else ""
        tiles.append(_neighbor(near, picture, mark, apart=not number))
    title = f"{one.given} → {one.suggested}"
    return Card(_plain(title), _plain(f"{one.score:.0%} · {one.path}{_split(one.split)}"), tiles)


def _copies(group: Copies, picture: Read) -> Card:
    facts = [KIND_WORDS[group.kind]]
    if group.leaks:
        facts.append("in both train and test")
    if group.conflicts:
        facts.append("with different labels")
    tiles = [_copy(copy, picture, first=not n) for n, copy in enumerate(group.images[:GROUP_SHOWN])]
    more = len(group.images) - GROUP_SHOWN
    text = f"{len(group.images):,} images" + (f", the first {GROUP_SHOWN} shown" if more > 0 else "")
    return Card(", ".join(facts), text, tiles)


def _copy(copy: Copy, picture: Read, *, first: bool) -> Tile:
    kind = "keep this one" if first else f"{copy.kind}, {copy.cosine:.3f}"
    notes = (kind, copy.label or "", copy.split or "", f"{copy.width} × {copy.height}")
    return Tile(picture(copy.image), _plain(Path(copy.path).name), [_plain(note) for note in notes])


def _outlier(one: Outlier, picture: Read) -> Card:
    tiles = [Tile(picture(one.image), "this image", (_plain(one.label or ""),))]
    tiles += [_neighbor(near, picture, "", apart=not number) for number, near in enumerate(one.neighbors)]
    return Card(", ".join(one.why), _plain(f"{one.path}{_split(one.split)} · {one.score:.1f}"), tiles)


def _neighbor(near: Neighbor, picture: Read, mark: str, *, apart: bool) -> Tile:
    name = near.label or Path(near.path).name
    return Tile(picture(near.image), _plain(name), (f"{near.cosine:.3f}",), mark, apart)


def _split(split: str | None) -> str:
    return f" · {split}" if split else ""


def _plain(text: str) -> str:
    """Return one line that a page can show."""
    return printable_line(text)
