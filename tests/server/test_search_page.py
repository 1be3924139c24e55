"""The page in a real browser, against a real server process with a real index: photos in, results, why."""

from __future__ import annotations

import json
import re

import httpx
import numpy as np
import pytest
from browsing import ITEMS, PAINTED, Tab, loaded, names, pixels, scores
from playwright.sync_api import Page, Route, expect

from serving import drawn

pytestmark = pytest.mark.slow

BUSY = json.dumps({"detail": "Too many at a time."})
DRAWN = "canvas => canvas.toDataURL()"
COLORS = """(canvas, points) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    return points.map(([x, y]) => [
        ...copy.getImageData(Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data]);
}"""


def slowly(route: Route) -> None:
    """Answer some time after everything else that the page asks for when it is opened."""
    answer = route.fetch()
    route.request.frame.page.wait_for_timeout(700)
    route.fulfill(response=answer)


# --- giving a photo ---------------------------------------------------------------------------------------------------


def test_welcome_says_what_to_do(tab: Tab) -> None:
    page = tab.go()
    expect(page.get_by_role("heading", name="Find the look-alikes of a photo")).to_be_visible()
    expect(page.locator("#count")).to_have_text(f"{ITEMS} pictures")
    expect(page.locator("#samples .card")).to_have_count(12)
    loaded(page, "#samples img")


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_drop_and_paste(tab: Tab, bird: bytes, how: str) -> None:
    page = tab.go()
    tab.give(bird, "my photo.png", how=how)
    expect(tab.searched(24)).to_have_count(24)
    assert names(page)[0] == "bird 3.png"
    found = scores(page)
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    expect(page.locator("#query-name")).to_have_text("my photo.png")
    assert re.search(r"[?&]q=q[0-9a-f]{16}$", page.url)
    expect(page.locator("#dropping")).to_be_hidden()


def test_choose_then_click_and_go_back(tab: Tab, bird: bytes) -> None:
    page = tab.go()
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Choose a photo").click()
    chosen.value.set_files({"name": "chosen.png", "mimeType": "image/png", "buffer": bird})
    tab.searched()
    first = names(page)
    page.locator("#hits .open").nth(2).click()
    expect(page.locator("#query-name")).to_have_text(first[2])
    tab.searched()
    assert first[2] in first
    assert names(page) != first
    page.go_back()
    expect(page.locator("#query-name")).to_have_text("chosen.png")
    tab.searched()
    assert names(page) == first
    page.go_back()
    expect(page.locator("#welcome")).to_be_visible()
    page.go_forward()
    tab.searched()
    assert names(page) == first


def test_what_is_no_photo_is_told_in_words(tab: Tab, bird: bytes) -> None:
    tab.expected = ("415", "413")
    page = tab.go()
    tab.give(b"Dear diary", "diary.txt", "text/plain")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("not a picture")
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#alert-retry")).to_be_hidden()  # it would not help
    tab.give(drawn("BMP", (400, 400)), "large.bmp", "image/bmp")
    expect(alert).to_contain_text("larger than 0.2 MB")
    tab.give(bird)
    tab.searched()
    expect(alert).to_be_hidden()
    tab.give(b"Dear diary", "diary.txt", "text/plain")
    expect(alert).to_contain_text("not a picture")
    expect(page.locator("#found-title")).to_have_text("24 pictures most like this one")  # what was there stays
    page.get_by_role("button", name="Close this message").click()
    expect(alert).to_be_hidden()


def test_a_busy_server_is_asked_again(tab: Tab, bird: bytes) -> None:
    tab.expected = ("503",)
    page, refusals = tab.go(), []

    def busy(route: Route) -> None:
        if len(refusals) < 5:
            refusals.append(1)
            route.fulfill(status=503, headers={"Retry-After": "0.1"}, body=BUSY)
        else:
            route.continue_()

    page.route("**/api/search*", busy)
    tab.give(bird)
    expect(page.get_by_role("alert")).to_contain_text("Asking again")
    expect(page.get_by_role("alert")).to_contain_text("Too many at a time.")
    assert len(refusals) == 4
    page.get_by_role("button", name="Try again").click()
    tab.searched()
    assert names(page)[0] == "bird 3.png"
    expect(page.get_by_role("alert")).to_be_hidden()


# --- looking ----------------------------------------------------------------------------------------------------------


def test_overlay_follows_the_mask_and_the_slider(tab: Tab, page: Page) -> None:
    frame = page.locator("#query .frame")
    loaded(page, "#query img")
    page.mouse.move(5, 5)
    plain, shown = pixels(frame), []
    page.get_by_role("switch", name="Show where it looks").first.check()
    page.wait_for_selector(PAINTED)
    for strength in ("20", "60", "100"):
        page.locator("#overlay").fill(strength)
        shown.append(np.abs(pixels(frame) - plain).mean())
    assert 1 < shown[0] < shown[1] < shown[2]
    assert len(page.locator(PAINTED).all()) >= 4
    # the brightest cell of the mask lets more of the picture through than the darkest
    answer = httpx.get(f"{tab.url}api/attention/{page.url.split('q=')[1]}", timeout=60).json()
    mask, view = np.array(answer["mask"]), answer["view"]

    def center(cell: int) -> list[float]:
        row, column = np.unravel_index(cell, mask.shape)
        x = view["x"] + view["width"] * (column + 0.5) / mask.shape[1]
        return [float(x), float(view["y"] + view["height"] * (row + 0.5) / mask.shape[0])]

    places = [center(int(mask.argmax())), center(int(mask.argmin())), [0.01, 0.01], [0.99, 0.99]]
    high, low, *corners = page.locator("#query .heat").evaluate(COLORS, places)
    assert sum(high[:3]) > sum(low[:3]) + 100
    assert high[3] < low[3]
    assert corners[0] == corners[1]  # beside the view nothing is seen
    page.keyboard.press("o")
    assert np.abs(pixels(frame) - plain).mean() < 0.5


def test_box_searches_by_a_part(tab: Tab, page: Page) -> None:
    whole = list(zip(names(page), scores(page), strict=True))
    area = page.locator("#query .frame").bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 0.2 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 0.7 * area["height"], steps=4)
    page.mouse.up()
    page.wait_for_url("**box=**")
    expect(page.locator("#found-title")).to_have_text("24 pictures most like a part of this one")
    box = [float(part) for part in tab.asked("search")[-1]["box"].split(",")]
    assert box == pytest.approx([0.3, 0.2, 0.3, 0.5], abs=0.02)
    assert list(zip(names(page), scores(page), strict=True)) != whole
    # by keys: move, resize, clear
    expect(page.locator(".box")).to_be_focused()
    for key in ("ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    wanted = pytest.approx([box[0] + 0.02, box[1], box[2], box[3] + 0.02], abs=1e-6)
    for _ in range(300):  # asked once the keys are quiet
        if (moved := [float(part) for part in tab.asked("search")[-1]["box"].split(",")]) == wanted:
            break
        page.wait_for_timeout(100)
    assert moved == wanted
    expect(page.locator(".box")).to_have_attribute("aria-label", re.compile("Arrows move it"))
    page.keyboard.press("Delete")
    expect(page.locator("#found-title")).to_have_text("24 pictures most like this one")
    for _ in range(300):  # on a busy machine the title is there before the pictures
        if list(zip(names(page), scores(page), strict=True)) == whole:
            break
        page.wait_for_timeout(100)
    assert list(zip(names(page), scores(page), strict=True)) == whole
    page.go_back()
    expect(page.locator(".box")).to_be_visible()  # the box is part of the address


def test_choices_change_the_question(tab: Tab, page: Page) -> None:
    page.get_by_role("radio", name="Whole picture").check()
    page.wait_for_url("**by=average**")
    page.locator("#k").select_option("12")
    expect(page.locator("#hits .card")).to_have_count(12)
    assert tab.asked("search")[-1] == {"query": tab.asked("search")[-1]["query"], "k": "12", "by": "average"}
    before = names(page)
    page.locator("#diversity").fill("0.9")
    page.wait_for_url("**diversity=0.9**")
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    assert tab.asked("search")[-1]["diversity"] == "0.9"
    assert names(page) != before
    page.locator("#min").fill("1")
    expect(page.locator("#min-out")).to_have_text("1.00")
    page.wait_for_url("**min=1**")
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    assert len(scores(page)) <= 1
    assert tab.asked("search")[-1]["min_score"] == "1"
    page.route("**/api/health", slowly)  # what the address names is not forgotten until the server is known
    page.reload()
    tab.searched(0)
    page.unroute("**/api/health", slowly)
    assert tab.asked("search")[-1]["by"] == "average"
    expect(page.locator("#by input:checked")).to_have_value("average")
    expect(page.locator("#min-out")).to_have_text("1.00")


def test_why(tab: Tab, page: Page) -> None:
    shown = scores(page)[1]
    page.locator("#hits .why").nth(1).click()
    dialog = page.get_by_role("dialog", name="Why are these alike?")
    expect(dialog.locator("#explain-words")).to_contain_text(f"The score is {shown:.2f}")
    parts = dialog.locator(".part")
    assert parts.count() >= 2
    whole = [canvas.evaluate(DRAWN) for canvas in dialog.locator(".heat").all()]
    assert len(whole) == 2
    shares = [int(text.removesuffix(" %")) for text in dialog.locator(".part-share").all_text_contents()]
    rest = dialog.locator(".rest").all_text_contents()
    assert shares[0] == 100
    assert sum(shares[1:]) + sum(int(re.findall(r"\d+", text)[-1]) for text in rest) == pytest.approx(100, abs=3)
    parts.nth(1).hover()
    assert [canvas.evaluate(DRAWN) for canvas in dialog.locator(".heat").all()] != whole
    parts.nth(0).focus()
    assert [canvas.evaluate(DRAWN) for canvas in dialog.locator(".heat").all()] == whole
    strong = pixels(dialog.locator(".frame").first)
    dialog.locator("#explain-heat").fill("0")
    assert np.abs(pixels(dialog.locator(".frame").first) - strong).mean() > 1
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert tab.asked("explain")[-1]["query"] == tab.asked("search")[-1].get("query", page.url.split("q=")[1])


def test_pin_and_compare(page: Page) -> None:
    page.get_by_role("button", name="Pin", exact=True).click()  # the photo itself
    expect(page.get_by_role("button", name="Pin another to compare")).to_be_disabled()
    for number in range(4):
        page.locator("#hits .pin").nth(number).click()
    expect(page.locator("#tray-pins li")).to_have_count(4)  # and no more
    expect(page.locator("#live")).to_contain_text("unpin one first")
    page.get_by_role("button", name="Compare 4").click()
    dialog = page.get_by_role("dialog", name="Side by side")
    expect(dialog.locator("figure")).to_have_count(4)
    expect(dialog.locator(".heat[data-painted]")).to_have_count(4)
    frames = dialog.locator(".frame").all()
    for number in range(4):
        loaded(page, "#compare img", number)
    plain = [pixels(frame) for frame in frames]
    dialog.get_by_role("switch").check()
    dialog.locator("#compare-overlay").fill("90")
    assert all(np.abs(pixels(frame) - before).mean() > 1 for frame, before in zip(frames, plain, strict=True))
    dialog.get_by_role("button", name="Unpin").first.click()
    expect(dialog.locator("figure")).to_have_count(3)
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("#overlay")).to_have_value("90")  # the same slider everywhere
    expect(page.get_by_role("button", name="Compare 3")).to_be_visible()
