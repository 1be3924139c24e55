"""Labels and tags on the page, in a real browser: a selection, keys, undo, filters, and what is saved of it."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Tab, opened
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from indexes import small_encoder
from serving import Serving, indexed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def labeled_run(page_birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of its own: what is written here would be seen by other modules."""
    run = small_encoder(tmp_path_factory.mktemp("labels") / "run")
    indexed(run, page_birds)
    return run


@pytest.fixture(scope="module")
def url(labeled_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = tmp_path_factory.mktemp("cache")
    with Serving("serve", labeled_run, "--port", "0", "--cache-dir", cache) as running:
        yield running.url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    with opened(browser, url, permissions=["clipboard-read", "clipboard-write"]) as tab:
        yield tab


def browse(tab: Tab, address: str = "?view=browse") -> Page:
    page = tab.go(address)
    page.wait_for_selector("#all .card")
    return page


def labels_of(page: Page) -> list[str]:
    return page.locator("#all .chip.label").all_text_contents()


def test_label_a_range_by_mouse_and_keys_and_take_it_back(tab: Tab, labeled_run: Path) -> None:
    page = browse(tab)
    page.locator("#all .select").nth(1).click()
    page.locator("#all .select").nth(4).click(modifiers=["Shift"])
    expect(page.locator("#tray-selected")).to_have_text("4 selected")
    page.keyboard.press("l")
    page.keyboard.type("red <b>finch</b>")  # a text, whatever it looks like
    page.keyboard.press("Enter")
    expect(page.locator("#all .chip.label")).to_have_text(4 * ["red <b>finch</b>"])
    page.keyboard.press("t")
    page.keyboard.type("sharp")
    page.keyboard.press("Enter")
    expect(page.locator("#all .chip:not(.label)")).to_have_text(4 * ["sharp"])
    page.keyboard.press("u")
    expect(page.locator("#all .chip:not(.label)")).to_have_count(0)
    assert (labeled_run / "notes.db").is_file()
    page.keyboard.press("Escape")
    expect(page.locator("#tray")).to_be_hidden()
    # a number key labels the picture that has the focus, and goes on
    page.locator("#all .open").nth(6).focus()
    page.keyboard.press("1")
    expect(page.locator("#all .chip.label")).to_have_count(5)
    expect(page.locator("#all .open").nth(7)).to_be_focused()
    page.keyboard.press("1")
    expect(page.locator("#all .chip.label")).to_have_count(6)
    page.reload()  # it is in the index, not in the page
    expect(page.locator("#all .chip.label")).to_have_count(6)
    page.keyboard.press("u")
    expect(page.locator("#all .chip.label")).to_have_count(5)


def test_arrows_with_shift_select(tab: Tab) -> None:
    page = browse(tab)
    page.locator("#all .open").first.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#tray-selected")).to_have_text("4 selected")
    page.keyboard.press("a")
    expect(page.locator("#tray-selected")).to_have_text("40 selected")


def test_filters_narrow_lists_and_searches(tab: Tab) -> None:
    page = browse(tab)
    page.keyboard.press("a")
    page.locator("#label-input").fill("bird")
    page.get_by_role("button", name="Give label").click()
    expect(page.locator("#all .chip.label")).to_have_count(40)
    page.get_by_role("button", name="Clear", exact=True).click()
    page.locator("#browse-filters [data-filter=folder]").select_option("kind-2")
    expect(page.locator("#all .card")).to_have_count(8)
    page.locator("#all .open").first.click()  # a search keeps the filter
    tab.searched()
    paths = [node.get_attribute("title") for node in page.locator("#hits .name").all()]
    assert len(paths) == 7
    assert all(path and path.startswith("kind-2/") for path in paths)
    page.reload()
    expect(page.locator("#hits .card")).to_have_count(7)  # it is in the address
    page.locator("#found-filters [data-unfilter]").click()
    expect(page.locator("#hits .card")).to_have_count(24)
    page.locator("#found-filters [data-filter=label]").select_option(label="without a label (0)")
    expect(page.locator("#none")).to_contain_text("No picture is left")
    page.keyboard.press("u")  # back to what was before


def test_paths_zip_and_tables(tab: Tab) -> None:
    page = browse(tab)
    page.locator("#all .select").nth(2).click()
    page.locator("#all .select").nth(3).click()
    page.keyboard.press("l")
    page.keyboard.type("=cmd")
    page.keyboard.press("Enter")
    expect(page.locator("#all .selected .chip.label")).to_have_text(["=cmd", "=cmd"])
    paths = [page.locator("#all .name").nth(n).get_attribute("title") for n in (2, 3)]
    page.locator("#tray-more summary").click()
    page.locator("#copy-paths").click()
    expect(page.locator("#tray-words")).to_contain_text("2 pictures")
    assert page.evaluate("navigator.clipboard.readText()").split("\n")[:2] == paths
    with page.expect_download() as download:
        page.locator("#zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [str(Path(path or "").with_suffix(".jpg")) for path in paths]
        assert Image.open(io.BytesIO(archive.read(archive.namelist()[0]))).format == "JPEG"  # drawn anew
    with page.expect_download() as download:
        page.locator("#tray").get_by_role("link", name="All labels (CSV)").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert {row["path"]: row["label"] for row in rows}[paths[0] or ""] == "'=cmd"  # no spreadsheet runs it
    page.keyboard.press("u")
