"""One browser and one server process for each module that looks at the page. Heavy imports are inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browsing import Tab
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def page_birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from browsing import draw_birds

    return draw_birds(tmp_path_factory.mktemp("page") / "birds")


@pytest.fixture(scope="module")
def page_server(page_birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from serving import Serving, indexed, small_encoder

    index = indexed(small_encoder(page_birds.parent / "run"), page_birds)
    cache = tmp_path_factory.mktemp("cache")
    with Serving("serve", index, "--port", "0", "--max-upload-mb", "0.2", "--cache-dir", cache) as running:
        yield running.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from browsing import started_browser

    with started_browser() as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, page_server: str) -> Iterator[Tab]:
    from browsing import opened

    with opened(browser, page_server) as tab:
        yield tab


@pytest.fixture(scope="module")
def bird(page_birds: Path) -> bytes:
    """One of the indexed files: it must be found first."""
    return (page_birds / "kind-2" / "bird 3.png").read_bytes()
