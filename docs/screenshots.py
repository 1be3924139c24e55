"""Take the pictures of the page in docs/img, from a server that is running.

finesight serve runs/birds/index &
python docs/screenshots.py http://127.0.0.1:8000/ a-bird.jpg --out docs/img
python docs/screenshots.py http://127.0.0.1:8000/ a-bird.jpg --collection   # gives labels: serve a copy of the run

finesight up birds/ --minutes 5 &
python docs/screenshots.py http://127.0.0.1:8000/ birds/a-bird.jpg --up minute   # while it trains
python docs/screenshots.py http://127.0.0.1:8000/ birds/a-bird.jpg --up after    # when it is done
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

DESK = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 780}


@contextmanager
def opened(browser: Browser, url: str, photo: Path | None, **options: object) -> Iterator[Page]:
    """Yield the page, with the hits of the photo if one is given."""
    context = browser.new_context(**{"viewport": DESK, **options})  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    if photo is not None:
        page.set_input_files("#file", photo)
        page.wait_for_selector("#hits .card")
    yield page
    context.close()


def save(page: Page, file: Path) -> None:
    """Save what the page shows as WebP: a PNG of photos would take ten times the space."""
    page.wait_for_load_state("networkidle")
    page.mouse.move(2, 2)
    page.wait_for_timeout(700)  # pictures fade in
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(file, "WEBP", quality=84, method=6)
    print(file, f"{file.stat().st_size / 1000:.0f} kB")


def draw_box(page: Page, box: tuple[float, float, float, float]) -> None:
    area = page.locator("#query .frame").bounding_box()
    assert area is not None
    x, y, width, height = box
    page.mouse.move(area["x"] + x * area["width"], area["y"] + y * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + (x + width) * area["width"], area["y"] + (y + height) * area["height"], steps=5)
    page.mouse.up()
    page.wait_for_timeout(1500)


def take(browser: Browser, url: str, photo: Path, out: Path, box: tuple[float, float, float, float]) -> None:
    with opened(browser, url, photo) as page:
        page.locator("#overlay-on").check()
        save(page, out / "search-results.webp")
        page.locator("#overlay-on").uncheck()
        page.locator("#hits .why").nth(1).click()
        page.wait_for_selector(".part")
        save(page, out / "search-why.webp")
        page.keyboard.press("Escape")
        draw_box(page, box)
        save(page, out / "search-part.webp")
    with opened(browser, url, photo, color_scheme="dark") as page:
        page.locator("#query-pin").click()
        for number in (0, 2, 4):
            page.locator("#hits .pin").nth(number).click()
        page.locator("#compare-open").click()
        page.locator("#compare-on").check()
        save(page, out / "search-compare.webp")


def take_collection(browser: Browser, url: str, photo: Path, out: Path) -> None:
    """Take the views of a whole collection. They give labels and make groups: use a copy of the run."""
    with opened(browser, f"{url}?view=groups&count=24&mine=no", None) as page:
        page.wait_for_selector(".group", timeout=120_000)
        page.locator("#mine-start").click()
        page.wait_for_selector("[data-mine]", timeout=120_000)
        for number, name in ((0, "blackbird"), (2, "blue bunting")):
            page.locator("[data-mine] input[type=text]").nth(number).fill(name)
            page.locator("[data-mine] input[type=text]").nth(number).blur()
            page.wait_for_timeout(1500)
        for number in (3, 4):
            page.locator("[data-mine] input[type=checkbox]").nth(number).check()
        save(page, out / "search-groups.webp")
    with opened(browser, url, photo) as page:
        page.locator("#hits .select").nth(0).click()
        page.locator("#hits .select").nth(4).click(modifiers=["Shift"])
        page.locator("#label-input").fill("painted bunting")
        page.locator("#label-form button").click()
        page.wait_for_selector("#hits .chip.label")
        save(page, out / "search-labels.webp")
    with opened(browser, f"{url}?view=map", None) as page:
        page.wait_for_selector("#map-legend li", timeout=300_000)
        page.locator("#map-canvas").focus()
        for _ in range(3):
            page.keyboard.press("+")
        save(page, out / "search-map.webp")
    with opened(browser, url, photo, viewport=PHONE, device_scale_factor=1.5, has_touch=True, is_mobile=True) as page:
        save(page, out / "search-phone.webp")


def take_up(browser: Browser, url: str, photo: Path, out: Path, moment: str) -> None:
    """Take the page of `finesight up`: after a minute, or before and after training side by side."""
    side_by_side = "?features=both&k=12" if moment == "after" else ""
    with opened(browser, url + side_by_side, photo) as page:
        if side_by_side:
            page.wait_for_selector("#after-hits .card")
        page.wait_for_selector("#training:not([hidden])")
        save(page, out / f"up-{moment}.webp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("photo", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "img")
    parser.add_argument("--box", type=float, nargs=4, default=(0.3, 0.2, 0.3, 0.3), help="x y width height, as shares")
    parser.add_argument("--up", choices=("minute", "after"), help="only this picture, of `finesight up`")
    parser.add_argument("--collection", action="store_true", help="only the groups, labels, map and phone")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if given.up:
            take_up(browser, given.url, given.photo, given.out, given.up)
        elif given.collection:
            take_collection(browser, given.url, given.photo, given.out)
        else:
            take(browser, given.url, given.photo, given.out, tuple(given.box))
        browser.close()


if __name__ == "__main__":
    main()
