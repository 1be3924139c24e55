"""The page without a mouse, on a phone, in the dark; browsing, exporting; while an index is built."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from browsing import CSV_NAME, HTML_NAME, ITEMS, PAINTED, Tab, opened, pixels
from playwright.sync_api import Browser, Page, expect

from finesight.features.embedder import TorchEmbedder
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from finesight.server.job import BackgroundJob
from indexes import small_encoder
from serving import in_thread, indexed, web_for

pytestmark = pytest.mark.slow

SMALL = """nodes => nodes
    .filter((node) => Math.min(node.getBoundingClientRect().height, node.getBoundingClientRect().width) < 34)
    .map((node) => node.outerHTML)"""


def focused(page: Page) -> str:
    """Id of the card that has the focus."""
    return str(page.evaluate("document.activeElement.closest('.card')?.dataset.id ?? ''"))


# --- browsing ---------------------------------------------------------------------------------------------------------


def test_browse_filter_and_a_name_with_html(tab: Tab) -> None:
    page = tab.go("?view=browse")
    expect(page.locator("#all .card")).to_have_count(ITEMS)
    page.keyboard.press("/")
    page.keyboard.type("ONERROR")
    expect(page.locator("#all .card")).to_have_count(1)
    expect(page.locator("#all .name")).to_have_text(HTML_NAME)
    assert page.locator("#all b, img[onerror]").count() == 0
    page.locator("#all .open").click()
    tab.searched()
    expect(page.locator("#query-name")).to_have_text(HTML_NAME)
    page.locator("#hits .why").first.click()
    expect(page.locator("#explain figcaption").first).to_contain_text(HTML_NAME)
    page.keyboard.press("Escape")
    page.go_back()
    expect(page.locator("#filter")).to_have_value("ONERROR")
    page.locator("#filter").fill("nothing is called so")
    expect(page.locator("#all-none")).to_have_text("No path contains that text.")


def test_csv(tab: Tab, bird: bytes) -> None:
    page = tab.go("?view=browse")
    page.locator("#filter").fill("quoted")
    expect(page.locator("#all .card")).to_have_count(1)
    page.locator("#all .select").click()
    item = page.locator("#all .card").get_attribute("data-id")
    tab.give(bird)
    tab.searched()
    page.locator("#hits .select").nth(0).click()
    expect(page.locator("#tray-selected")).to_have_text("2 selected")
    page.locator("#tray-more summary").click()
    with page.expect_download() as download:
        page.locator("#tray").get_by_role("button", name="Export CSV").click()
    assert download.value.suggested_filename == "finesight.csv"
    data = download.value.path().read_bytes()
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    assert rows[0] == ["path", "score", "id", "label", "tags"]
    assert rows[1] == [f"'{CSV_NAME}", "", item, "", ""]  # the apostrophe keeps spreadsheets from running it
    assert rows[2][0] == "kind-2/bird 3.png"
    assert float(rows[2][1]) == pytest.approx(1, abs=1e-5)
    assert b'\r\n"\'=1+2,""quoted"".png",,' in data
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#tray")).to_be_hidden()
    with page.expect_download() as download:
        page.locator("#found").get_by_role("button", name="Export CSV").click()
    assert len(download.value.path().read_text().splitlines()) == 25  # nothing selected: all that is shown


def test_groups_that_a_server_does_not_have(tab: Tab) -> None:
    tab.expected = ("404",)
    tab.page.route("**/api/clusters*", lambda route: route.fulfill(status=404, json={"detail": "Nothing is here."}))
    expect(tab.go("?view=groups").locator("#groups-none")).to_have_text("This server cannot make groups.")
    expect(tab.page.get_by_role("alert")).to_be_hidden()


def test_groups(tab: Tab) -> None:
    page = tab.go("?view=groups&count=4")
    expect(page.locator(".group")).to_have_count(4)
    sizes = [int(text.split()[0]) for text in page.locator(".group .quiet").all_text_contents()]
    assert sum(sizes) == ITEMS
    page.locator(".group").first.click()
    expect(page.locator("#group .card")).to_have_count(sizes[0])
    expect(page.locator("#groups-title")).to_have_text(re.compile(f"^A group of {sizes[0]} picture"))
    page.get_by_role("button", name="All groups").click()
    expect(page.locator(".group")).to_have_count(4)
    page.locator("#groups-method").select_option("hdbscan")
    page.wait_for_url("**method=hdbscan**")
    expect(page.locator("#groups-title")).to_have_text(re.compile(r"^\d+ groups?$"))
    assert tab.asked("clusters")[-1] == {"method": "hdbscan"}


def test_documentation(tab: Tab) -> None:
    """Swagger UI works under the content policy, and asks nobody else."""
    page = tab.go("docs")
    page.locator("#operations-default-health_api_health_get .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table .response-col_status").last).to_have_text("200")


# --- without a mouse, on a phone, in the dark -------------------------------------------------------------------------


def test_keys_alone(tab: Tab) -> None:
    page = tab.go()
    page.wait_for_selector("#samples .card")
    page.keyboard.press("ArrowDown")
    ids = page.locator("#samples .card").evaluate_all("cards => cards.map((card) => card.dataset.id)")
    assert focused(page) == ids[0]
    page.keyboard.press("ArrowRight")
    assert focused(page) == ids[1]
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(ring.removesuffix("px")) >= 2
    page.keyboard.press("Enter")
    cards = tab.searched()
    assert f"q={ids[1]}" in page.url
    hits = cards.evaluate_all("cards => cards.map((card) => card.dataset.id)")
    columns = page.evaluate("getComputedStyle(document.querySelector('#hits')).gridTemplateColumns").count(" ") + 1
    expect(page.locator("#hits .open:focus")).to_have_count(1)
    for key, at in (("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("End", 23), ("Home", 0)):
        page.keyboard.press(key)
        assert focused(page) == hits[at], key
    page.keyboard.press("p")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("p")
    page.keyboard.press("s")
    expect(page.locator("#tray-selected")).to_have_text("1 selected")
    page.keyboard.press("e")
    dialog = page.locator("#explain")
    page.wait_for_selector("#parts .part")
    for _ in range(20):
        page.keyboard.press("Tab")  # stays inside
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('#explain')")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert focused(page) == hits[1]  # back where it was
    page.keyboard.press("c")
    expect(page.locator("#compare figure")).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    expect(page.locator(".box")).to_be_focused()
    page.wait_for_url("**box=**")
    page.keyboard.press("Escape")
    expect(page.locator(".box")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="How this works")).to_be_visible()
    page.keyboard.press("o")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--heat')").strip() == "0"
    page.keyboard.press("Escape")
    page.keyboard.press("o")
    page.wait_for_selector(PAINTED)


def test_phone(browser: Browser, page_server: str, bird: bytes, no_pins: None) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with opened(browser, page_server, **options) as tab:
        page = tab.go()

        def fits() -> None:
            assert page.evaluate("document.documentElement.scrollWidth") <= 360

        fits()
        tab.give(bird)
        tab.searched()
        fits()
        buttons = page.locator("#found button:visible, header button:visible, nav a:visible")
        small = buttons.evaluate_all(SMALL)
        assert small == []  # a finger can hit them
        page.get_by_role("button", name="Search by a part").tap()
        page.wait_for_url("**box=0.25**")
        _drag_box_by_finger(page)
        page.wait_for_url(re.compile("box=0.[34]"))
        with page.expect_response(re.compile("/api/search")):
            page.get_by_role("button", name="Clear the box").tap()
        tab.searched()  # else the second tap may meet the picture of the first at its new place
        page.locator("#hits .pin").nth(0).tap()
        page.locator("#hits .pin").nth(1).tap()
        page.get_by_role("button", name="Compare 2").tap()
        expect(page.locator("#compare figure")).to_have_count(2)
        fits()
        page.locator("#compare [data-close]").tap()
        page.locator("#hits .why").nth(3).tap()
        page.wait_for_selector("#parts .part")
        fits()
        assert page.evaluate("document.querySelector('#explain').scrollWidth <= 360")
        page.locator("#parts .part").last.scroll_into_view_if_needed()
        page.locator("#explain [data-close]").tap()
        page.get_by_role("link", name="All pictures").tap()
        expect(page.locator("#all .card")).to_have_count(ITEMS)
        fits()


def _drag_box_by_finger(page: Page) -> None:
    page.locator(".box").scroll_into_view_if_needed()
    area = page.locator(".box").bounding_box()
    assert area is not None
    x, y = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    finger = page.context.new_cdp_session(page)
    for kind, dx in (("touchStart", 0), ("touchMove", 15), ("touchMove", 30)):
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x + dx, "y": y}]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def contrast(page: Page, selector: str) -> float:
    """WCAG's ratio of an element's color and the page's own background."""
    script = "node => [getComputedStyle(node).color, getComputedStyle(document.body).backgroundColor]"
    colors = page.eval_on_selector(selector, script)

    def luminance(text: str) -> float:
        values = np.array([int(part) for part in re.findall(r"\d+", text)[:3]]) / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted(map(luminance, colors))
    return (high + 0.05) / (low + 0.05)


def test_light_and_dark(browser: Browser, page_server: str) -> None:
    def brightness(page: Page) -> float:
        return float(np.mean(pixels(page.locator("header"))))

    for scheme, dark in (("light", False), ("dark", True)):
        with opened(browser, page_server, color_scheme=scheme) as tab:
            page = tab.go()
            page.wait_for_selector("#samples .card")
            assert (brightness(page) < 100) is dark
            page.get_by_role("button", name="Switch between light and dark").click()
            assert (brightness(page) < 100) is not dark
            page.reload()  # remembered
            page.wait_for_selector("#samples .card")
            assert (brightness(page) < 100) is not dark
            for selector in ("h1", "#count", "#samples .name", "nav a[aria-current]"):
                assert contrast(page, selector) >= 4.5, (scheme, selector)


# --- other servers ----------------------------------------------------------------------------------------------------


def test_without_a_rationale(browser: Browser, page_birds: Path, tmp_path: Path) -> None:
    index = indexed(small_encoder(tmp_path / "run", "average"), page_birds / "kind-3")
    with (
        web_for(index, tmp_path / "cache") as web,
        in_thread(web.service) as (url, _),
        opened(browser, url) as tab,
    ):
        page = tab.go()
        page.locator("#samples .open").first.click()
        tab.searched()
        expect(page.locator("#by")).to_be_hidden()  # there is nothing to choose
        page.locator("#hits .why").first.click()
        expect(page.locator("#parts-hint")).to_contain_text("no separate parts")
        expect(page.locator("#parts .part")).to_have_count(1)
        expect(page.locator("#explain .heat[data-painted]")).to_have_count(2)


def test_progress_and_a_server_that_ends(browser: Browser, page_birds: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    engine, gate, held = TorchEmbedder.load(run), threading.Event(), list[int]()
    open_or_create(str(run / "index"), engine, run, page_birds).close()

    def work(job: BackgroundJob) -> None:
        def tell(phase: str, done: int, total: int) -> None:
            job.report(phase, done, total)
            if phase == "embedding" and 0 < done < total and not held:
                held.append(done)
                assert gate.wait(60)

        index = open_index(run / "index")
        update_index(index, engine, page_birds, workers=1, callback=tell)
        index.close()

    job = BackgroundJob(work)
    with web_for(run / "index", tmp_path / "cache", job) as web:
        job.start()
        with in_thread(web.service) as (url, server), opened(browser, url) as tab:
            tab.expected = ("ERR_CONNECTION_REFUSED",)
            page = tab.go()
            expect(page.locator("#building-words")).to_have_text(
                re.compile(rf"^Adding pictures: [1-9]\d* of {ITEMS}\.$")
            )
            expect(page.locator("#building-words")).to_have_text(f"Adding pictures: {held[0]} of {ITEMS}.")
            assert page.locator("#building-bar").evaluate("bar => [bar.value, bar.max]") == [held[0], ITEMS]
            expect(page.locator("#empty-words")).to_have_text("There are no pictures in the index yet.")
            gate.set()
            expect(page.locator("#samples .card")).to_have_count(12)  # without being asked
            expect(page.locator("#count")).to_have_text(f"{ITEMS} pictures")
            expect(page.locator("#building-words")).to_have_text(f"The index is ready: {ITEMS} pictures.")
            page.locator("#samples .open").first.click()
            tab.searched()
            server.should_exit = True
            parts = urlsplit(url)
            with contextlib.suppress(ConnectionRefusedError):
                for _ in range(600):
                    socket.create_connection((parts.hostname, parts.port)).close()
                    page.wait_for_timeout(100)
            page.wait_for_timeout(300)  # for the connections that are open
            page.locator("#hits .open").first.click()
            expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
            expect(page.get_by_role("button", name="Try again")).to_be_visible()
