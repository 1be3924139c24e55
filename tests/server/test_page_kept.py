"""What the page keeps and knows: dates, names of parts, saved views, pins, many photos; several and rebuilt indexes."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browsing import ITEMS, Tab, opened
from PIL import ExifTags, Image
from playwright.sync_api import Browser, expect

from indexes import small_encoder
from serving import Serving, indexed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(page_birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: of all birds, one of which has a date and a place; of one kind; of files with numbers as names."""
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(page_birds, folder / "birds")
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:31 08:15:07"
    exif[ExifTags.Base.Model] = "Testcam 3"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "S", 2: (33.0, 51.0, 24.5), 3: "E", 4: (151.0, 12.0, 55.1)})
    with Image.open(folder / "birds" / "kind-2" / "bird 5.png") as image:
        image.save(folder / "birds" / "kind-2" / "dated.jpg", exif=exif)
    indexed(small_encoder(folder / "many"), folder / "birds")
    indexed(small_encoder(folder / "few"), folder / "birds" / "kind-3")
    (folder / "birds by number").mkdir()
    for number, name in enumerate(("104", "4", "114", "14"), start=1):
        shutil.copy(page_birds / "kind-1" / f"bird {number}.png", folder / "birds by number" / f"{name}.png")
    indexed(small_encoder(folder / "numbers"), folder / "birds by number")
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    options = ("--port", "0", "--cache-dir", folder / "cache")
    with Serving("serve", folder / "many", folder / "few", folder / "numbers", *options) as running:
        yield running.url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    with opened(browser, f"{url}i/many/", permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.expected = ("GL Driver Message",)
        yield tab


def test_several_indexes(browser: Browser, url: str) -> None:
    with opened(browser, url) as tab:
        page = tab.go()
        expect(page.locator("#indexes a")).to_have_count(3)
        page.get_by_role("link", name=f"many, {ITEMS + 1} pictures").click()
        page.wait_for_url("**/i/many/")
        page.locator("#samples .open").first.click()
        tab.searched()
        assert "/i/many/?q=" in page.url  # a link names its index
        page.locator("#indexes").select_option("few")
        page.wait_for_url("**/i/few/")
        expect(page.locator("#count")).to_have_text("8 pictures")
    assert httpx.get(f"{url}i/few", timeout=60).status_code in (200, 307)
    assert httpx.get(f"{url}i/none/api/health", timeout=60).status_code == 404
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert httpx.get(f"{url}i/few/api/health", headers=foreign, timeout=60).status_code == 403


def test_pictures_are_sorted_as_people_do(browser: Browser, url: str) -> None:
    with opened(browser, f"{url}i/numbers/") as tab:
        page = tab.go("?view=browse")
        expect(page.locator("#all .name")).to_have_text(["4.png", "14.png", "104.png", "114.png"])


def test_dates_cameras_and_places(tab: Tab) -> None:
    for _ in range(300):
        if httpx.get(f"{tab.url}api/camera", timeout=60).json()["known"] == ITEMS + 1:
            break
        tab.page.wait_for_timeout(100)
    page = tab.go("?view=browse")
    expect(page.locator("#browse-filters [data-filter=since]")).to_be_visible()
    page.locator("#browse-filters [data-filter=since]").fill("2024-05-01")
    page.locator("#browse-filters [data-filter=since]").dispatch_event("change")
    expect(page.locator("#all .card")).to_have_count(1)
    page.locator("#all .info").click()
    expect(page.locator("#details-facts")).to_contain_text("May 31, 2024, 08:15")
    expect(page.locator("#details-facts")).to_contain_text("Testcam 3")
    expect(page.locator("#details-facts")).to_contain_text("33.8568° S, 151.2153° E")
    page.keyboard.press("Escape")
    page.goto(f"{tab.url}?view=browse&until=2020-01-01")
    expect(page.locator("#all-none")).to_contain_text("No picture is left")


def test_a_box_on_a_hit_searches_by_that_part(tab: Tab) -> None:
    page = tab.go("?view=browse")
    page.wait_for_selector("#all .card")
    card = page.locator("#all .card", has_text="bird 1.png").first
    card.scroll_into_view_if_needed()
    area = card.locator(".open").bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + 0.25 * area["width"], area["y"] + 0.25 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.75 * area["width"], area["y"] + 0.75 * area["height"], steps=4)
    page.mouse.up()
    page.wait_for_url("**box=**")
    tab.searched()
    box = [float(part) for part in tab.asked("search")[-1]["box"].split(",")]
    # the picture is 96 × 64, of which the card shows the middle 64 × 64
    assert box == pytest.approx([1 / 3, 0.25, 1 / 3, 0.5], abs=0.02)
    page.go_back()
    page.wait_for_selector("#all .card")
    page.locator("#all .info").first.click()
    page.get_by_role("button", name="Search by a part").last.click()
    expect(page.locator("#details .box")).to_be_focused()
    page.locator("#details-part").click()
    page.wait_for_url(re.compile("box=0.25"))


def test_parts_get_names(tab: Tab) -> None:
    page = tab.go()
    page.locator("#samples .open").first.click()
    tab.searched()
    page.locator("#hits .why").first.click()
    page.locator("#parts .with-name .small").first.click()
    page.keyboard.type("wing <i>")
    page.keyboard.press("Enter")
    expect(page.locator("#parts .part-name").nth(1)).to_contain_text("wing <i>")
    page.reload()  # the address says that the window is open
    expect(page.locator("#parts .part-name").nth(1)).to_contain_text("wing <i>")


def test_views_and_pins_survive(tab: Tab, browser: Browser) -> None:
    page = tab.go("?view=browse&folder=kind-2")
    page.wait_for_selector("#all .card")
    page.locator("#all .pin").first.click()
    page.locator("#saved-open").click()
    page.locator("#saved-name").fill("second kind")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#saved-list a")).to_have_text(["second kind"])
    page.get_by_role("button", name="Copy the link").click()
    expect(page.locator("#saved-words")).to_have_text("The link is copied.")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    with opened(browser, tab.url) as other:  # another browser
        page = other.go()
        expect(page.locator("#tray-pins li")).to_have_count(1)
        page.locator("#saved-open").click()
        page.get_by_role("link", name="second kind").click()
        expect(page.locator("#all .card")).to_have_count(9)
        page.locator("#saved-open").click()
        page.get_by_role("button", name="Remove second kind").click()
        expect(page.locator("#saved-none")).to_be_visible()


def test_a_link_opens_windows_and_the_place_on_the_map(tab: Tab) -> None:
    page = tab.go()
    page.locator("#samples .open").first.click()
    tab.searched()
    item = page.locator("#hits .card").nth(2).get_attribute("data-id")
    page.locator("#hits .why").nth(2).click()
    expect(page.locator("#parts .part").first).to_be_visible()
    words = page.locator("#explain-words").text_content() or ""
    page.locator("#explain").get_by_role("button", name="Copy the link").click()
    expect(page.locator("#explain [data-copy-link]")).to_have_text("The link is copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert f"why={item}" in link
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#explain-words")).to_have_text(words)
    page.keyboard.press("Escape")
    page.wait_for_url(lambda address: "why" not in address)
    page.locator("#hits .info").nth(2).click()
    expect(page.locator("#details-facts div").first).to_be_visible()
    facts = page.locator("#details-facts").text_content() or ""
    page.reload()
    expect(page.locator("#details-title")).to_be_visible()
    expect(page.locator("#details-facts")).to_contain_text(facts.split("Score")[0])
    page.locator("#details-like").click()
    page.wait_for_url(lambda address: f"q={item}" in address and "info" not in address)
    tab.searched()
    pair = [page.locator("#hits .card").nth(n).get_attribute("data-id") for n in (0, 1)]
    pins = httpx.get(f"{tab.url}api/saved", timeout=60).json()["pins"]
    page.goto(f"{tab.url}?q={item}&compare={','.join(map(str, pair))}")  # as it is when pinned ones are compared
    expect(page.locator("#compare figure")).to_have_count(2)
    assert httpx.get(f"{tab.url}api/saved", timeout=60).json()["pins"] == pins  # a link changes nothing that is kept
    page.locator("#compare").get_by_role("button", name="Remove").first.click()
    expect(page.locator("#compare")).to_be_hidden()
    page.wait_for_url(lambda address: "compare" not in address)
    tab.go("?view=map")
    expect(page.locator("#map-thumbs img").first).to_be_visible()
    page.locator("#map-canvas").focus()
    for key in ("+", "ArrowLeft"):
        page.keyboard.press(key)
    page.wait_for_url("**at=**")
    first = page.locator("#map-thumbs img").first
    where = first.get_attribute("style"), first.get_attribute("data-n")
    page.reload()
    expect(first).to_have_attribute("data-n", where[1] or "")
    expect(first).to_have_attribute("style", where[0] or "")
    page.locator("#map-all").click()
    page.wait_for_url(lambda address: "at=" not in address)


def test_many_photos_at_once(tab: Tab, folder: Path) -> None:
    tab.expected = ("415", "GL Driver")
    page = tab.go()
    photos = [folder / "birds" / "kind-2" / f"bird {n}.png" for n in (1, 2)]
    (folder / "no photo.png").write_text("Dear diary")
    page.set_input_files("#file", [*photos, folder / "no photo.png"])
    expect(page.locator("#many-title")).to_have_text("Hits of 3 photos.")
    expect(page.locator("#many-list .card")).to_have_count(16)
    expect(page.locator("#many-list li.copies").last).to_contain_text("not a picture")
    with page.expect_download() as download:
        page.locator("#many-export").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_bytes().decode("utf-8-sig"))))
    assert [row["query"] for row in rows] == 8 * ["bird 1.png"] + 8 * ["bird 2.png"]
    assert rows[0]["path"] == "kind-2/bird 1.png"


def test_map(tab: Tab) -> None:
    page = tab.go("?view=map")
    expect(page.locator("#map-title")).to_have_text(f"Map of {ITEMS + 1} pictures")
    expect(page.locator("#map-thumbs img").first).to_be_visible()
    area = page.locator("#map-canvas").bounding_box()
    assert area is not None
    page.locator("#map-lasso").click()
    corners = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]
    page.mouse.move(area["x"] + corners[0][0] * area["width"], area["y"] + corners[0][1] * area["height"])
    page.mouse.down()
    for x, y in corners[1:]:
        page.mouse.move(area["x"] + x * area["width"], area["y"] + y * area["height"])
    page.mouse.up()
    expect(page.locator("#tray-selected")).to_have_text(f"{ITEMS + 1} selected")
    page.locator("#map-lasso").click()
    page.locator("#map-canvas").focus()
    for key in ("+", "+", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")  # the picture in the middle
    tab.searched()


def test_an_index_that_is_made_anew_is_taken_over(tab: Tab, folder: Path, url: str) -> None:
    few = f"{url}i/few/api/"
    assert httpx.get(f"{few}health", timeout=60).json()["items"] == 8
    item = httpx.get(f"{few}items", timeout=60).json()["items"][0]["id"]
    answer = httpx.post(f"{few}labels", json={"ids": [item], "label": "kept"}, timeout=60)
    assert answer.json()["changed"] == 1
    made = small_encoder(folder / "anew", seed=5)
    new = indexed(made, folder / "birds" / "kind-4")
    shutil.rmtree(folder / "few" / "index")
    new.rename(folder / "few" / "index")
    for _ in range(300):
        health = httpx.get(f"{few}health", timeout=60).json()
        found = httpx.get(f"{few}items", timeout=60).json()
        if health.get("encoder", {}).get("fingerprint") and found.get("items"):
            index = open_fingerprint(folder)
            if health["encoder"]["fingerprint"] == index:
                break
        tab.page.wait_for_timeout(100)
    assert health["encoder"]["fingerprint"] == open_fingerprint(folder)
    assert {one["path"] for one in found["items"]} >= {"bird 1.png"}
    thumb = httpx.get(f"{few}items/{found['items'][0]['id']}/thumb", timeout=60)
    assert thumb.headers["content-type"] == "image/jpeg"


def open_fingerprint(folder: Path) -> str:
    from finesight.search.engines import open_index

    index = open_index(folder / "few" / "index")
    index.close()
    return index.meta.fingerprint
