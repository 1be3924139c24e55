"""A real browser on the page, and a folder of drawn birds for it, some with the worst of names."""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

from finesight.data.drawing import draw, make_species

HTML_NAME = "<img src=x onerror=alert(1)> & <b>bold.png"
CSV_NAME = '=1+2,"quoted".png'
SPECIES, EACH = 5, 8
PATIENCE = 60_000  # milliseconds, only for what never happens
expect.set_options(timeout=PATIENCE)
ITEMS = SPECIES * EACH
PAINTED = "#hits .heat[data-painted]"
GIVE = """([name, type, text, how]) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, {type}));
    if (how === "paste") {
        document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true}));
    } else {
        for (const kind of ["dragenter", "dragover", "drop"]) {
            document.querySelector("main").dispatchEvent(
                new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }
    }
}"""


def draw_birds(folder: Path) -> Path:
    """40 birds that look alike, square and wide, in folders by species; two have names to be careful with."""
    kinds = make_species(SPECIES, seed=0)
    for species in range(SPECIES):
        (folder / f"kind-{species}").mkdir(parents=True)
        for number in range(EACH):
            bird = draw(kinds[species], 64, np.random.default_rng([species, number])).image
            if number % 2:
                wide = Image.new("RGB", (96, 64), (90, 120, 80))
                wide.paste(bird, (16, 0))
                bird = wide
            bird.save(folder / f"kind-{species}" / f"bird {number}.png")
    (folder / "kind-0" / "bird 0.png").rename(folder / HTML_NAME)
    (folder / "kind-1" / "bird 0.png").rename(folder / CSV_NAME)
    return folder


def violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is shown."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.wait_for_timeout(300)  # colors fade
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def chromium() -> str:
    """Where it is; without one there is nothing to test, which only CI may not accept."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        message = "Chromium is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@contextmanager
def started_browser() -> Iterator[Browser]:
    place = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """One page. What it complains of and whom it asks is kept, and looked at when it is closed."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # complaints that a test provokes hold one of these

    def __post_init__(self) -> None:
        page = self.page
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: self.complain(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complain(str(error)))
        page.on("dialog", lambda dialog: (self.complain(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request))

    def complain(self, words: str) -> None:
        self.complaints.append(words)

    def go(self, address: str = "") -> Page:
        self.page.goto(self.url + address)
        return self.page

    def give(self, data: bytes, name: str = "photo.png", kind: str = "image/png", how: str = "drop") -> None:
        self.page.evaluate(GIVE, [name, kind, base64.b64encode(data).decode(), how])

    def searched(self, hits: int = 1) -> Locator:
        """The hits, as soon as the search is over."""
        self.page.wait_for_selector("#found:not([hidden])[aria-busy=false]")
        cards = self.page.locator("#hits .card")
        assert cards.count() >= hits
        return cards

    def asked(self, path: str) -> list[dict[str, str]]:
        """What the page has asked the API there, oldest first."""
        parts = [urlsplit(request.url) for request in self.requests]
        return [
            {key: values[0] for key, values in parse_qs(part.query).items()}
            for part in parts
            if part.path.endswith(f"/api/{path}")
        ]

    def check(self) -> None:
        own = urlsplit(self.url).netloc
        elsewhere = [r.url for r in self.requests if urlsplit(r.url).netloc != own]
        strangers = [url for url in elsewhere if not url.startswith(("blob:", "data:"))]
        assert not strangers, strangers
        rest = [words for words in self.complaints if not any(part in words for part in self.expected)]
        assert not rest, rest


@contextmanager
def opened(browser: Browser, url: str, **options: object) -> Iterator[Tab]:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 850}, **options})  # type: ignore[arg-type]
    try:
        tab = Tab(context.new_page(), url)
        yield tab
        tab.check()
    finally:
        context.close()


def pixels(target: Locator) -> np.ndarray:
    """What is on the screen there."""
    return np.asarray(Image.open(io.BytesIO(target.screenshot())).convert("RGB"), np.float64)


def scores(page: Page) -> list[float]:
    return [float(text) for text in page.locator("#hits .score").all_text_contents()]


def names(page: Page) -> list[str]:
    return page.locator("#hits .name").all_text_contents()


def loaded(page: Page, images: str, number: int = 0) -> None:
    expect(page.locator(images).nth(number)).not_to_have_js_property("naturalWidth", 0)
