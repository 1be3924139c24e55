"""One index and one server process for all tests of the server. Heavy imports are inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browsing import Tab
    from playwright.sync_api import Browser, Page

    from serving import Gallery, Web


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """An index of eight drawn pictures, which nothing may change."""
    from serving import make_gallery

    return make_gallery(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def web(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    from serving import web_for

    with web_for(gallery.index, tmp_path_factory.mktemp("cache"), upload_bytes=200_000, pixels=1_000_000) as web:
        yield web


@pytest.fixture(scope="session")
def ids(web: Web) -> dict[str, str]:
    """The id of each path."""
    return {item["path"]: item["id"] for item in web.ask("items")["items"]}


@pytest.fixture(scope="session")
def page_birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from browsing import draw_birds

    return draw_birds(tmp_path_factory.mktemp("page") / "birds")


@pytest.fixture(scope="session")
def page_server(page_birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from indexes import small_encoder
    from serving import Serving, indexed

    index = indexed(small_encoder(page_birds.parent / "run"), page_birds)
    cache = tmp_path_factory.mktemp("cache")
    with Serving("serve", index, "--port", "0", "--max-upload-mb", "0.2", "--cache-dir", cache) as running:
        yield running.url


@pytest.fixture(scope="module")  # Playwright's event loop must not outlive it: asyncio.run would fail in other modules
def browser() -> Iterator[Browser]:
    from browsing import started_browser

    with started_browser() as browser:
        yield browser


@pytest.fixture
def no_pins(page_server: str) -> None:
    """Nothing is pinned: the server keeps what earlier tests have pinned."""
    import httpx

    httpx.post(f"{page_server}api/pins", json={"ids": []}, timeout=60).raise_for_status()


@pytest.fixture
def tab(browser: Browser, page_server: str, no_pins: None) -> Iterator[Tab]:
    from browsing import opened

    with opened(browser, page_server) as tab:
        yield tab


@pytest.fixture(scope="session")
def bird(page_birds: Path) -> bytes:
    """One of the indexed files: it must be found first."""
    return (page_birds / "kind-2" / "bird 3.png").read_bytes()


@pytest.fixture
def page(tab: Tab, bird: bytes) -> Page:
    """The page with the hits of that file."""
    tab.go()
    tab.give(bird)
    tab.searched()
    return tab.page
