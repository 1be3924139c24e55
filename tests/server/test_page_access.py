"""axe-core finds nothing on any view, in light and dark: names for screen readers, contrast, roles, focus."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browsing import opened, violations
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


def _open(button: str, wait: str) -> Callable[[Page], None]:
    def steps(page: Page) -> None:
        page.wait_for_selector("#hits .card")
        page.locator(button).first.click()
        page.wait_for_selector(wait)

    return steps


VIEWS: dict[str, tuple[str, Callable[[Page], object]]] = {
    "welcome": ("", lambda page: page.wait_for_selector("#samples .card")),
    "all": ("?view=browse", lambda page: page.wait_for_selector("#all .card")),
    "groups": ("?view=groups&count=4", lambda page: page.wait_for_selector(".group")),
    "copies": ("?view=copies&threshold=0.9", lambda page: page.wait_for_selector(".copies")),
    "map": ("?view=map", lambda page: page.wait_for_selector("#map-legend li")),
    "selected": ("?q=ID", _open("#hits .select", "#tray:not([hidden])")),
    "why": ("?q=ID", _open("#hits .why", "#parts .part")),
    "details": ("?q=ID", _open("#hits .info", "#details-facts div")),
    "saved": ("?q=ID", _open("#saved-open", "#saved[open]")),
    "help": ("?q=ID", _open("#help-open", "#help[open]")),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view(browser: Browser, page_server: str, scheme: str) -> None:
    found = {}
    with opened(browser, page_server, color_scheme=scheme) as tab:
        tab.expected = ("GL Driver Message",)
        tab.go().wait_for_selector("#samples .card")
        item = tab.page.locator("#samples .card").first.get_attribute("data-id") or ""
        for name, (address, steps) in VIEWS.items():
            page = tab.go(address.replace("ID", item))
            steps(page)
            found[name] = violations(page)
    assert found == {name: [] for name in VIEWS}


def test_the_check_can_fail(browser: Browser, page_server: str) -> None:
    with opened(browser, page_server) as tab:
        page = tab.go()
        page.wait_for_selector("#samples .card")
        page.evaluate("document.querySelector('#help-open').removeAttribute('aria-label')")
        page.evaluate("document.querySelector('#help-open').removeAttribute('title')")
        page.evaluate("document.querySelector('#help-open').textContent = ''")
        assert any(words.startswith("button-name") for words in violations(page))
