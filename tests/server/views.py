"""Every view of the page, and how to get there: for tests that look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from browsing import Tab, opened
from playwright.sync_api import Browser, Page, expect
from test_judge import make_desk

from finesight.features.embedder import TorchEmbedder
from finesight.search.engines import open_index
from finesight.server.config import ServerConfig
from finesight.server.judge_desk import JudgeRoom
from finesight.server.service import SearchService
from finesight.server.several import SeveralServices
from serving import drawn, in_thread, make_gallery

Steps = Callable[[Page], object]


def _wait(selector: str) -> Steps:
    return lambda page: page.wait_for_selector(selector)


def _open(button: str, wait: str) -> Steps:
    def steps(page: Page) -> None:
        page.wait_for_selector("#hits .card")
        page.locator(button).first.click()
        page.wait_for_selector(wait)

    return steps


def _send_two(page: Page) -> None:
    photos = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": drawn(seed=n)} for n in range(2)]
    page.set_input_files("#file", photos)  # type: ignore[arg-type]
    expect(page.locator("#many-list .card")).to_have_count(16)


def _train(**training: object) -> Steps:
    """Show the page of a server that trains: only what /api/health says of it is made up."""

    def answer(page: Page) -> None:
        health = httpx.get(f"{page.url}api/health", timeout=60).json()
        state = {"words": "Training: step 30 of 100.", "step": 30, "total": 100, "seconds_left": 600, "new_images": 0}
        verdict = {"verdict": "cannot tell", "kept": "frozen", "by": "labels", "words": "It cannot be told."}
        features = [{"name": name, "spaces": health["spaces"]} for name in ("before", "after")]
        health |= {"training": {"can_start": True, **state, **training}, "verdict": verdict, "features": features}
        page.route("**/api/health", lambda route: route.fulfill(json=health))
        page.reload()
        page.wait_for_selector("#training:not([hidden])")

    return answer


def _end(page: Page) -> None:
    expect(page.locator("#main")).to_have_attribute("aria-busy", "false")
    page.keyboard.press("ArrowLeft")
    page.locator("#reveal").click()
    page.wait_for_selector("#end:not([hidden])")


VIEWS: dict[str, tuple[str, str, Steps]] = {  # name: server, address, and what to do there
    "welcome": ("page", "", _wait("#samples .card")),
    "training": ("page", "", _train(state="running")),
    "trained": ("page", "", _train(state="done")),
    "all": ("page", "?view=browse", _wait("#all .card")),
    "groups": ("page", "?view=groups&count=4", _wait(".group")),
    "copies": ("page", "?view=copies&threshold=0.9", _wait(".copies")),
    "map": ("page", "?view=map", _wait("#map-legend li")),
    "many": ("page", "", _send_two),
    "selected": ("page", "?q=ID", _open("#hits .select", "#tray:not([hidden])")),
    "why": ("page", "?q=ID", _open("#hits .why", "#parts .part")),
    "details": ("page", "?q=ID", _open("#hits .info", "#details-facts div")),
    "comparison": ("page", "?q=ID&compare=ID,OTHER", _wait("#compare figure + figure")),
    "saved": ("page", "?q=ID", _open("#saved-open", "#saved[open]")),
    "help": ("page", "?q=ID", _open("#help-open", "#help[open]")),
    "indexes": ("several", "", _wait("#indexes a")),
    "own groups": ("several", "i/one/?view=groups&mine=yes", _wait("[data-mine]")),
    "judge": ("judge", "", _wait("#main[aria-busy=false] #interval-words:not(:empty)")),
    "judged": ("judge", "", _end),
    "sign-in": ("closed", "", _wait("input[name=token]")),
}


@contextmanager
def all_servers(browser: Browser, page_server: str, folder: Path, **options: object) -> Iterator[dict[str, Tab]]:
    """Yield a tab on each of the servers that ``VIEWS`` names."""
    index, config = make_gallery(folder / "gallery").index, ServerConfig(cache_dir=folder / "cache")
    service = SearchService(open_index(index), TorchEmbedder.load(index.parent), config)
    desk = make_desk(folder / "desk")
    room = JudgeRoom(lambda: desk, desk.config)
    closed = JudgeRoom(lambda: desk, ServerConfig(token="a-word-nobody-guesses"))
    with ExitStack() as stack:
        urls = {"page": page_server}
        for name, one in (
            ("several", SeveralServices({"one": service, "two": service}, config)),
            ("judge", room),
            ("closed", closed),
        ):
            urls[name], _ = stack.enter_context(in_thread(one))  # type: ignore[arg-type]
        start = {"method": "kmeans", "count": 3}
        httpx.post(f"{urls['several']}i/one/api/groups/start", json=start, timeout=60).raise_for_status()
        tabs = {name: stack.enter_context(opened(browser, url, **options)) for name, url in urls.items()}
        for tab in tabs.values():
            tab.expected = ("GL Driver Message", "401")
        yield tabs


def show(tabs: dict[str, Tab], name: str) -> Page:
    """Open a view."""
    server, address, steps = VIEWS[name]
    tabs[server].page.unroute_all(behavior="ignoreErrors")
    if "ID" in address:
        items = httpx.get(f"{tabs[server].url}api/items?limit=2", timeout=60).json()["items"]
        address = address.replace("ID", items[0]["id"]).replace("OTHER", items[1]["id"])
    page = tabs[server].go(address)
    steps(page)
    return page
