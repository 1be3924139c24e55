"""Judging in a real browser: by keys, by touch on a phone, with undo, after a reload, to the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Tab, loaded, opened
from playwright.sync_api import Browser, Page, expect
from test_judge import IMAGES, make_desk, side_of

from finesight.server.judge_desk import JudgeDesk, JudgeRoom
from finesight.server.run_server import SearchServer
from serving import in_thread

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, JudgeDesk, SearchServer]]:
    desk = make_desk(tmp_path)
    room = JudgeRoom(lambda: desk, desk.config)
    with in_thread(room) as (url, server):
        yield url, desk, server


@pytest.fixture
def tab(browser: Browser, served: tuple[str, JudgeDesk, SearchServer]) -> Iterator[Tab]:
    with opened(browser, served[0]) as tab:
        tab.go()
        asked(tab.page, 1)
        yield tab


def asked(page: Page, number: int) -> dict[str, int]:
    """Wait for that question; return the images that are shown."""
    expect(page.locator("#ask")).to_have_attribute("data-question", str(number))
    expect(page.locator("#main")).to_have_attribute("aria-busy", "false")
    places = {"query": "#query img", "left": '[data-choice="left"] img', "right": '[data-choice="right"] img'}
    for place in places.values():
        loaded(page, place)
    return {name: int(page.locator(place).get_attribute("data-image") or -1) for name, place in places.items()}


def clicks(desk: JudgeDesk) -> list[str]:
    return [one.choice for one in desk.judging.record.judgments]


def bar(page: Page) -> float:
    return float(page.locator("#interval-bar").get_attribute("width") or 0)


def test_arrows_answer_and_backspace_takes_back(tab: Tab, served: tuple[str, JudgeDesk, SearchServer]) -> None:
    page, desk = tab.page, served[1]
    expect(page.locator("#undo")).to_be_hidden()
    for number, key in enumerate(("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"), start=2):
        page.keyboard.press(key)
        asked(page, number)
    assert clicks(desk) == ["left", "right", "both", "neither"]
    expect(page.locator("#count")).to_have_text("4 answers")
    before = asked(page, 5)
    page.keyboard.press("Backspace")
    asked(page, 4)
    page.keyboard.press("u")
    asked(page, 3)
    assert clicks(desk) == ["left", "right"]
    page.keyboard.press("ArrowUp")
    asked(page, 4)
    page.keyboard.press("ArrowDown")
    assert asked(page, 5) == before  # the same questions, at the same sides
    assert page.evaluate("window.scrollY") == 0


def test_the_interval_narrows_and_the_end_says_what_was_which(
    tab: Tab, served: tuple[str, JudgeDesk, SearchServer]
) -> None:
    page = tab.page
    assert "trained network" not in page.content()
    widths = []
    for number in range(1, 11):
        shown = asked(page, number)
        widths.append(bar(page))
        page.keyboard.press("ArrowLeft" if side_of(shown, 2) == "left" else "ArrowRight")
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.7 * widths[0]
    expect(page.get_by_role("heading", name="Decided: trained network is better")).to_be_visible()
    expect(page.locator("#end-words")).to_contain_text("trained network is better than frozen network after 10 clicks")
    expect(page.locator("#end-counts")).to_contain_text("trained network")
    expect(page.locator("#end-verdict")).to_have_text("kept: trained network")
    expect(page.locator("#ask")).to_be_hidden()
    page.keyboard.press("ArrowLeft")  # does nothing any more
    assert len(clicks(served[1])) == 10
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 11
    page.locator("#undo").click()
    asked(page, 10)


def test_a_reload_in_the_middle_loses_nothing(tab: Tab, served: tuple[str, JudgeDesk, SearchServer]) -> None:
    page = tab.page
    page.keyboard.press("ArrowLeft")
    asked(page, 2)
    page.keyboard.press("ArrowUp")
    before = asked(page, 3)
    page.reload()
    assert asked(page, 3) == before
    expect(page.locator("#count")).to_have_text("2 answers")
    other = page.context.new_page()  # a second window is quicker: the first one follows
    other.goto(served[0])
    asked(other, 3)
    other.keyboard.press("ArrowDown")
    asked(other, 4)
    tab.expected = ("409",)
    page.keyboard.press("ArrowLeft")
    asked(page, 4)
    assert clicks(served[1]) == ["left", "both", "neither"]


def test_a_phone_by_touch(browser: Browser, served: tuple[str, JudgeDesk, SearchServer]) -> None:
    with opened(browser, served[0], **PHONE) as tab:
        page = tab.go("judge")
        asked(page, 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for choice in ("left", "right", "both", "neither"):
            box = page.locator(f'[data-choice="{choice}"]').bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 844  # all of it is on the screen at once
            assert min(box["width"], box["height"]) >= 44
        for number, choice in enumerate(("right", "both", "neither", "left"), start=2):
            page.locator(f'[data-choice="{choice}"]').tap()
            asked(page, number)
        page.locator("#undo").tap()
        asked(page, 4)
        assert clicks(served[1]) == ["right", "both", "neither"]


def test_stopping_early_shows_what_was_which_and_going_on_is_possible(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("ArrowLeft")
    asked(page, 2)
    page.get_by_role("button", name="Stop and show").click()
    expect(page.get_by_role("heading", name="Not decided yet")).to_be_visible()
    expect(page.locator("#end-counts")).to_contain_text("frozen network")
    page.get_by_role("button", name="Go on anyway").click()
    asked(page, 2)
    page.keyboard.press("ArrowLeft")
    asked(page, 3)


def test_names_for_screen_readers(tab: Tab) -> None:
    page = tab.page
    assert page.get_by_role("button", name="Left").count() == 1
    for image in page.locator("#ask img").all():
        assert image.get_attribute("alt")
    page.get_by_role("button", name="Both").focus()
    page.keyboard.press("Enter")
    asked(page, 2)
    expect(page.locator("#live")).to_contain_text("Question 2")
    expect(page.get_by_role("button", name="Both")).to_be_focused()


def test_a_server_that_is_gone_is_told_in_words(tab: Tab, served: tuple[str, JudgeDesk, SearchServer]) -> None:
    page = tab.page
    tab.expected = ("Failed to load resource",)
    page.route("**/api/judge/answers*", lambda route: route.abort())
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/api/judge/answers*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    asked(page, 2)
    assert len(clicks(served[1])) == 1
    assert served[1].judging.record.disagree == IMAGES
