"""Groups of one's own and copies, in a real browser: named, merged, split, given as labels; the best is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browsing import ITEMS, Tab, opened
from PIL import Image
from playwright.sync_api import Browser, expect

from indexes import small_encoder
from serving import Serving, indexed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(page_birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, whose folder has copies: an equal file, and one that is larger."""
    folder = tmp_path_factory.mktemp("groups")
    shutil.copytree(page_birds, folder / "birds")
    first = folder / "birds" / "kind-3" / "bird 2.png"
    shutil.copy(first, folder / "birds" / "kind-3" / "copy of bird 2.png")
    with Image.open(folder / "birds" / "kind-4" / "bird 4.png") as image:
        image.resize((256, 256)).save(folder / "birds" / "kind-4" / "large bird 4.png")
    run = small_encoder(folder / "run")
    indexed(run, folder / "birds")
    with Serving("serve", run, "--port", "0", "--cache-dir", folder / "cache") as running:
        yield running.url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    with opened(browser, url) as tab:
        yield tab


def sizes(url: str) -> dict[str, int]:
    groups = httpx.get(f"{url}api/groups", timeout=60).json()["groups"]
    return {one["name"] or str(one["id"]): one["size"] for one in groups}


def test_groups_are_named_merged_split_and_given_as_labels(tab: Tab) -> None:
    page = tab.go("?view=groups&count=4")
    expect(page.locator(".group")).to_have_count(4)
    page.get_by_role("button", name="Name and edit these groups").click()
    expect(page.locator("[data-mine]")).to_have_count(4)
    before = sizes(tab.url)
    names = page.locator("[data-mine] input[type=text]")
    names.nth(0).fill("robin")
    names.nth(0).blur()
    names.nth(1).fill("wren")
    names.nth(1).blur()
    expect(page.locator("#mine-apply")).to_be_enabled()
    for number in (2, 3):
        page.locator("[data-mine] input[type=checkbox]").nth(number).check()
    page.get_by_role("button", name="Merge 2 groups").click()
    expect(page.locator("[data-mine]")).to_have_count(3)
    page.get_by_role("button", name="Split robin in two").click()
    expect(page.locator("[data-mine]")).to_have_count(4)
    after = sizes(tab.url)
    assert sum(after.values()) == sum(before.values()) == ITEMS + 2
    assert after["wren"] == before["1"]
    assert after["robin"] < before["0"]
    page.locator("#mine-undo").click()  # the split
    expect(page.locator("[data-mine]")).to_have_count(3)
    assert sizes(tab.url)["robin"] == before["0"]
    page.locator("#mine-apply").click()
    expect(page.locator("#mine-words")).to_have_text(f"Labels given: {before['0'] + before['1']} pictures.")
    labels = httpx.get(f"{tab.url}api/labels", timeout=60).json()
    assert {one["name"]: one["count"] for one in labels["labels"]} == {"robin": before["0"], "wren": before["1"]}
    page.goto(f"{tab.url}?view=groups")  # a later visit
    expect(page.locator("[data-mine] input[type=text]").first).to_have_value("robin")
    # one picture goes into a group of its own
    page.locator("[data-mine] a").first.click()
    expect(page.locator("#groups-title")).to_have_text(f"robin: {before['0']} pictures")
    page.locator("#group .select").first.click()
    page.locator("#mine-move").select_option("new")
    expect(page.locator("#groups-title")).to_have_text(f"robin: {before['0'] - 1} pictures")
    assert sorted(sizes(tab.url).values()) == sorted([1, before["0"] - 1, before["1"], before["2"] + before["3"]])


def test_two_tabs_do_not_overwrite_each_other(tab: Tab) -> None:
    known = httpx.get(f"{tab.url}api/groups", timeout=60).json()
    tab.expected = ("409",)
    page = tab.go("?view=groups&mine=yes")
    expect(page.locator("[data-mine]").first).to_be_visible()
    number = known["groups"][0]["id"]
    change = {"version": known["version"], "action": "rename", "groups": [number], "name": "elsewhere"}
    assert httpx.post(f"{tab.url}api/groups", json=change, timeout=60).status_code == 200
    page.locator("[data-mine] input[type=text]").nth(1).fill("here")
    page.locator("[data-mine] input[type=text]").nth(1).blur()
    expect(page.get_by_role("alert")).to_contain_text("changed elsewhere")
    expect(page.locator("[data-mine] input[type=text]").first).to_have_value("elsewhere")


def test_the_best_copy_is_kept_and_nothing_deleted(tab: Tab) -> None:
    page = tab.go("?view=copies&threshold=0.999")
    equal = page.locator(".copies", has_text="equal files")
    expect(equal).to_have_count(1)
    expect(equal.locator(".card")).to_have_count(2)
    equal.get_by_role("button", name="Keep best").click()
    expect(equal.locator(".chip:not(.label)")).to_have_text(["keep", "duplicate"])
    assert httpx.get(f"{tab.url}api/items?tag=duplicate", timeout=60).json()["total"] == 1
    assert httpx.get(f"{tab.url}api/health", timeout=60).json()["items"] == ITEMS + 2


def test_the_largest_is_best_unless_the_sharpest_is_asked_for(url: str) -> None:
    for keep, best in (("largest", "large bird 4.png"), ("sharpest", "bird 4.png")):
        query = {"threshold": 0.9, "keep": keep, "limit": 500}
        groups = httpx.get(f"{url}api/duplicates", params=query, timeout=60).json()["groups"]
        mixed = next(
            one for one in groups if {"large bird 4.png", "bird 4.png"} <= {item["name"] for item in one["items"]}
        )
        if keep == "largest":
            assert mixed["items"][0]["name"] == best
        else:
            sharp = {item["path"]: item["sharpness"] for item in mixed["items"]}
            assert list(sharp.values()) == sorted(sharp.values(), reverse=True)
            assert sharp["kind-4/bird 4.png"] > 0
