"""The words of the page: every language has every key, and the page shows no word that is not in its table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browsing import opened
from playwright.sync_api import Browser, Page, expect
from views import VIEWS, all_servers, show

import finesight.server

pytestmark = pytest.mark.slow

PAGE = Path(finesight.server.__file__).parent / "page"
ENTRY = re.compile(r'"((?:[^"\\]|\\.)+)":\s*"((?:[^"\\]|\\.)*)"')
VALUE = re.compile(r"\{\w+\}")
USED = re.compile(r"\bt\(\"([^\"]+)\"|data-t(?:-\w+)?=\"([^\"]+)\"")
PLURALS = (".one", ".other")


def table(language: str) -> dict[str, str]:
    found = ENTRY.findall((PAGE / f"words-{language}.js").read_text())
    assert len(found) == len(dict(found)), [key for key, _ in found if [k for k, _ in found].count(key) > 1]
    return {json.loads(f'"{key}"'): json.loads(f'"{text}"') for key, text in found}


def test_every_language_has_every_key_and_value() -> None:
    english, german = table("en"), table("de")
    assert set(english) == set(german)
    for key, text in english.items():
        if key.endswith(".one"):
            continue  # it may say the number in a word
        assert set(VALUE.findall(text)) == set(VALUE.findall(german[key])), key


def test_every_key_that_is_used_is_there() -> None:
    english = table("en")
    for file in [*PAGE.glob("*.js"), *PAGE.glob("*.html")]:
        for key in {one or two for one, two in USED.findall(file.read_text())}:
            assert key in english or all(key + form in english for form in PLURALS), (file.name, key)


def test_the_page_as_it_is_sent_has_the_english_words() -> None:
    english = table("en")
    for file in PAGE.glob("*.html"):
        for key, text in re.findall(r'data-t="([^"]+)"[^>]*>([^<]*)<', file.read_text()):
            assert " ".join(text.split()) == english[key], key


SHOWN = """() => {
    const texts = [], english = (node) => node.closest("[lang]").lang === "en";
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode())
        if (!english(walk.currentNode.parentElement)) texts.push(walk.currentNode.textContent.trim());
    for (const node of document.querySelectorAll("*"))
        for (const name of ["aria-label", "title", "placeholder", "alt"])
            if (node.getAttribute(name)) texts.push(node.getAttribute(name));
    return texts.filter((text) => text);
}"""
# words of English sentences, for what is in no table
ENGLISH = re.compile(
    r"\b(the|and|of|which|with|that|is|are|not|pictures?|search|show|training)\b(?! \(englisch\))", re.I
)
ALSO_GERMAN = ("Training",)


def patterns(texts: set[str]) -> re.Pattern[str]:
    """What texts look like with anything in place of their values."""
    return re.compile("|".join("(?:.+?)".join(map(re.escape, VALUE.split(text))) for text in texts if len(text) > 1))


def left_in_english(page: Page) -> list[str]:
    """Texts on a German page that fit a text of the English table but none of the German one, or are English."""
    english, german = set(table("en").values()), set(table("de").values())
    only_english, only_german = patterns(english - german), patterns(german - english)
    shown = [text for text in page.evaluate(SHOWN) if not only_german.fullmatch(text) and text not in ALSO_GERMAN]
    return [text for text in shown if only_english.fullmatch(text) or ENGLISH.search(text)]


def test_german_everywhere(browser: Browser, page_server: str, tmp_path: Path) -> None:
    found = {}
    with all_servers(browser, page_server, tmp_path, locale="de-DE") as tabs:
        for name in VIEWS:
            page = show(tabs, name)
            assert page.locator("html").get_attribute("lang") == "de", name
            found[name] = left_in_english(page)
    assert found == {name: [] for name in VIEWS}


def test_the_check_of_german_can_fail(browser: Browser, page_server: str) -> None:
    with opened(browser, page_server, locale="en-US") as tab:
        page = tab.go()
        expect(page.locator("#count")).to_have_text("40 pictures")
        page.evaluate("document.documentElement.lang = 'de'")
        left = left_in_english(page)
        assert {"40 pictures", "Choose a photo", "Light or dark"} <= set(left)


def test_languages_are_chosen(browser: Browser, page_server: str) -> None:
    english, german = table("en"), table("de")
    with opened(browser, page_server, locale="de-DE") as tab:
        page = tab.go()
        expect(page.locator("h1").first).to_have_text(german["welcome"])
        expect(page.locator("#count")).to_have_text("40 Bilder")
    with opened(browser, page_server, locale="fr-FR") as tab:  # there is none: English
        expect(tab.go().locator("h1").first).to_have_text(english["welcome"])
        expect(tab.go("?lang=de").locator("h1").first).to_have_text(german["welcome"])
        expect(tab.go().locator("h1").first).to_have_text(german["welcome"])  # remembered


def test_on_a_phone_the_hits_come_first(browser: Browser, page_server: str, bird: bytes) -> None:
    options = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    with opened(browser, page_server, **options) as tab:
        page = tab.go()
        tab.give(bird)
        area = tab.searched().first.locator(".open").bounding_box()
        assert area is not None
        assert area["y"] + area["height"] <= 780
        expect(page.locator("#overlay-on")).to_be_hidden()
        page.get_by_role("button", name="Choices").click()
        expect(page.locator("#overlay-on")).to_be_visible()
        expect(page.get_by_role("button", name="Choices")).to_have_attribute("aria-expanded", "true")


RIGHT = "Math.max(...[...document.querySelectorAll('select')].map((one) => one.getBoundingClientRect().right))"


def test_on_a_phone_nothing_is_cut_off_and_the_filters_are_folded(browser: Browser, page_server: str) -> None:
    options = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True, "locale": "de-DE"}
    with opened(browser, page_server, **options) as tab:
        for address, wait in (("?view=groups&count=3", ".group"), ("?view=browse", "#all .card")):
            page = tab.go(address)
            page.wait_for_selector(wait)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
            assert page.evaluate(RIGHT) <= 390, address
            nav = page.locator("nav")
            assert nav.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0, address
        area = page.locator("#all .card").first.bounding_box()
        assert area is not None
        assert area["y"] < 780 / 3
        expect(page.locator("#browse-filters")).to_be_hidden()
        page.locator("#browse-toggle").click()
        expect(page.locator("#browse-filters")).to_be_visible()
        expect(page.locator("#browse-toggle")).to_have_attribute("aria-expanded", "true")
        page.locator('#browse-filters [data-filter="folder"]').select_option("kind-2")
        expect(page.locator("#all .card")).to_have_count(8)
        page.locator("#browse-toggle").click()
        expect(page.locator("#browse-filters")).to_be_visible()  # what is chosen is never hidden
