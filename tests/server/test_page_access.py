"""axe-core finds nothing on any view: names for screen readers, contrast, roles, focus; light, dark and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import Tab, opened, violations
from playwright.sync_api import Browser
from views import VIEWS, all_servers, show

pytestmark = pytest.mark.slow

SCREEN, PHONE = {"width": 1200, "height": 850}, {"width": 390, "height": 780}
FOLDED = ("welcome", "all", "selected", "why", "comparison", "own groups", "training", "judge")  # other on a phone


@pytest.fixture(scope="module")
def tabs(browser: Browser, page_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tab]]:
    with all_servers(browser, page_server, tmp_path_factory.mktemp("views")) as tabs:
        yield tabs


@pytest.mark.parametrize("name", VIEWS)
def test_every_view(tabs: dict[str, Tab], name: str) -> None:
    page, found = show(tabs, name), {}
    for scheme, size in (("light", SCREEN), ("dark", SCREEN), ("light", PHONE))[: 3 if name in FOLDED else 2]:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size(size)  # type: ignore[arg-type]
        found[scheme, size["width"]] = violations(page)
    page.set_viewport_size(SCREEN)  # type: ignore[arg-type]
    assert not any(found.values()), found


def test_the_check_can_fail(browser: Browser, page_server: str) -> None:
    with opened(browser, page_server) as tab:
        page = tab.go()
        page.wait_for_selector("#samples .card")
        page.evaluate("document.querySelector('#help-open').removeAttribute('aria-label')")
        page.evaluate("document.querySelector('#help-open').removeAttribute('title')")
        page.evaluate("document.querySelector('#help-open').textContent = ''")
        assert any(words.startswith("button-name") for words in violations(page))
