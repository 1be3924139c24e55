"""The page is parsed as a browser would, and must hold on its own."""

import base64
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.errors import FineSightError
from finesight.plots import html
from finesight.plots.html import Section, build_report

HOSTILE = "<script>alert('x')</script>\"' onerror=\"y & </td></table>{title}"
VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and fails on a tag that closes what is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def png(width: int = 30, height: int = 20, *, noise: bool = False, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    image = Image.fromarray(pixels).resize((width, height)) if noise else Image.new("RGB", (width, height), "red")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def build(tmp_path: Path, *sections: Section, title: str = "Report") -> Page:
    build_report(tmp_path / "report.html", title=title, sections=sections)
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def full(words: str) -> Section:
    return Section(words, f"{words}\n\n{words}", [{"system": words, words: 1.5}], [(words, png())])


@pytest.mark.parametrize("sections", [[], [Section("only")], [full("a"), full("b"), full("c")]])
def test_pages_are_balanced(tmp_path: Path, sections: list[Section]) -> None:
    page = build(tmp_path, *sections)
    assert len(page.all("section")) == len(sections)
    assert page.text("h1") == ["Report"]


def test_hostile_text_stays_text_everywhere(tmp_path: Path) -> None:
    page = build(tmp_path, *[full(HOSTILE)] * 3, title=HOSTILE)
    assert page.all("script") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.all("img")[0]["alt"] == HOSTILE
    for tag in ("title", "h1", "h2", "p", "td", "th", "figcaption", "a"):
        assert HOSTILE in page.text(tag), tag


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = build(tmp_path, full("a"), full("b"), full("c"))
    text = (tmp_path / "report.html").read_text()
    assert not any(word in text for word in ("http://", "https://", "@import", "url("))
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert page.all("link") == page.all("script") == page.all("iframe") == []
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "srcset")]
    assert len(sources) == 3
    assert all(source is not None and source.startswith("data:image/") for source in sources)
    links = [str(attributes["href"]) for attributes in page.all("a")]
    assert links == ["#s1", "#s2", "#s3"]
    assert [attributes["id"] for attributes in page.all("section")] == ["s1", "s2", "s3"]


def embedded(page: Page) -> tuple[str, Image.Image]:
    match = re.fullmatch(r"data:(image/\w+);base64,(.+)", str(page.all("img")[0]["src"]))
    assert match
    return match[1], Image.open(io.BytesIO(base64.b64decode(match[2], validate=True)))


def test_drawings_are_embedded_bit_for_bit(tmp_path: Path) -> None:
    mime, image = embedded(build(tmp_path, Section("a", images=[("b", png())])))
    assert (mime, image.format, image.size) == ("image/png", "PNG", (30, 20))


def test_photographs_are_embedded_smaller_and_look_the_same(tmp_path: Path) -> None:
    data = png(400, 300, noise=True)
    mime, image = embedded(build(tmp_path, Section("a", images=[("b", data)])))
    assert (mime, image.format) == ("image/webp", "WEBP")
    assert (tmp_path / "report.html").stat().st_size < len(data) / 2
    difference = np.abs(np.asarray(image.convert("RGB"), int) - np.asarray(Image.open(io.BytesIO(data)), int))
    assert difference.mean() < 6


def test_a_picture_too_tall_for_webp_is_kept(tmp_path: Path) -> None:
    mime, image = embedded(build(tmp_path, Section("a", images=[("b", png(16, 17000, noise=True))])))
    assert (mime, image.size) == ("image/png", (16, 17000))


def test_pictures_are_shown_at_the_size_they_were_drawn_for(tmp_path: Path) -> None:
    page = build(tmp_path, Section("a", images=[("b", png(300, 150, dpi=(144, 144))), ("c", png(300, 150))]))
    sizes = [(attributes["width"], attributes["height"]) for attributes in page.all("img")]
    assert sizes == [("200", "100"), ("300", "150")]


def test_numbers_share_decimals_within_a_column(tmp_path: Path) -> None:
    table = [
        {"system": "a", "rank-1": 45.3, "images": 5794, "lr": 0.03, "note": "x"},
        {"system": "b", "rank-1": np.float32(7.128), "images": np.int64(12), "lr": None, "note": 3},
        {"system": "c", "rank-1": float("nan"), "extra": True},
    ]
    page = build(tmp_path, Section("s", table=table))
    assert page.text("th") == ["system", "rank-1", "images", "lr", "note", "extra"]
    assert page.text("td") == [
        *("a", "45.30", "5,794", "0.0300", "x", "–"),
        *("b", "7.13", "12", "–", "3", "–"),
        *("c", "–", "–", "–", "–", "True"),
    ]
    numeric = [attributes.get("class") == "number" for attributes in page.all("th")]
    assert numeric == [False, True, True, True, False, False]


def test_long_tables_are_folded_and_cut(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.jpg", "reason": "zero bytes"} for i in range(html.MAX_ROWS + 1234)]
    page = build(tmp_path, Section("Skipped", table=rows))
    assert len(page.all("tr")) == 1 + html.MAX_ROWS
    assert page.text("summary") == [f"Show {len(rows):,} rows"]
    assert page.text("p")[0] == "1,234 more rows are not shown."
    assert build(tmp_path, Section("Skipped", table=rows[: html.FOLD_ROWS])).all("details") == []


@pytest.mark.parametrize("table", [None, [], [{}]])
def test_an_empty_table_is_no_table(tmp_path: Path, table: list[dict[str, object]] | None) -> None:
    assert build(tmp_path, Section("s", table=table)).all("table") == []


def test_file_names_that_are_not_unicode(tmp_path: Path) -> None:
    name = os.fsdecode(b"bird\xff.jpg")
    page = build(tmp_path, Section("s", table=[{"path": name}]))
    assert page.text("td") == ["bird\\udcff.jpg"]


def test_a_failed_write_leaves_the_old_page_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, Section("old"))

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(FineSightError, match=r"report\.html \(No space left on device\)"):
        build(tmp_path, Section("new"))
    assert os.listdir(tmp_path) == ["report.html"]
    assert "old" in (tmp_path / "report.html").read_text()


def test_missing_folders_are_made_and_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    build(tmp_path / "new" / "run", Section("a"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FineSightError, match="could not be written"):
        build(tmp_path / "file" / "run", Section("a"))
