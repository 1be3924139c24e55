"""The documentation site: it builds without a warning, every link leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import finesight
from processes import TIMEOUT
from server.browsing import opened, started_browser

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


class Links(HTMLParser):
    """The links, what the page loads, and the anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        target = found.get("href") if tag in ("a", "link") else found.get("src")
        if target is None:
            return
        (self.links if tag == "a" else self.loaded).append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {file: Links(file) for file in site.rglob("*.html") if file.name != "404.html"}


def test_every_link_and_every_anchor_leads_somewhere(pages: dict[Path, Links]) -> None:
    broken, followed = [], 0
    for file, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            followed += 1
            anchors = pages[target].ids if target in pages else None
            if not target.is_file() or (
                parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            ):
                broken.append(f"{file.name}: {link}")
    assert followed > 1000
    assert not broken


def test_pages_load_nothing_from_another_host(site: Path, pages: dict[Path, Links]) -> None:
    for file, page in pages.items():
        assert not [link for link in page.loaded if urlsplit(link).scheme not in ("", "data")], file
    for file in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?https?:|@import\s+[\"']?https?:", file.read_text(encoding="utf-8")), file


def test_the_reference_has_every_name_and_every_command(site: Path) -> None:
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in finesight.__all__:
        if name != "__version__":
            assert re.search(rf'id="finesight[\w.]*\.{name}"', python), name
    for name in (
        "Encoder.to_timm",
        "Encoder.push_to_hub",
        "Encoder.from_pretrained",
        "sklearn.Embedder",
        "search_words",
    ):
        assert re.search(rf'id="finesight[\w.]*\.{name}"', python), name
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in ("up", "train", "search", "datasets-check", "bench-table1"):
        assert f'id="finesight-{name}"' in commands, name
    assert "--min-score" in commands


def test_what_the_readme_links_to_is_there_and_it_fits_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 45
    assert text.count("](docs/img/") == 1
    assert len(re.findall(r"^(?:\$ | {4})\S", text, re.M)) == 3  # commands
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / link).exists(), link


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_browser_finds_a_page_by_its_words_and_asks_no_other_host(address: str) -> None:
    with started_browser() as browser, opened(browser, address) as tab:  # which looks at whom the page asked
        tab.go("notebooks/first-search.html").wait_for_load_state("networkidle")
        page = tab.go("index.html")
        first = page.locator(".md-search-result__link").first
        deadline = time.monotonic() + TIMEOUT
        while not first.count():  # what is typed before the page's script listens is lost
            assert time.monotonic() < deadline
            field = page.locator("input.md-search__input")
            field.blur()
            field.fill("")
            field.press_sequentially("mislabeled")
            page.wait_for_timeout(2000)
        assert "mislabeled-and-duplicates.html" in str(first.get_attribute("href"))
