"""``finesight up`` in a real browser: searching at once, training meanwhile, before and after, and the verdict."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import ITEMS, Tab, draw_birds, names, opened
from playwright.sync_api import Browser, expect

from finesight.io.atomic import write_atomic
from finesight.training.progress import read_progress
from processes import children_of
from serving import Serving

pytestmark = pytest.mark.slow

SMALL = (
    *("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--set", "backbone.output_stride=8"),
    *("--set", "rationale.projections=4", "--set", "objective.dim=8", "--batch-size", "8", "--preset", "paper"),
)
PATIENT = 120_000  # milliseconds, for a training on a busy machine


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Path]]:
    """A server that trains, and its run."""
    folder = draw_birds(tmp_path_factory.mktemp("up") / "birds")
    options = ("--epochs", "40", "--port", "0", "--no-open", "--quiet")
    run = folder.parent / "finesight-birds"
    with Serving("up", folder, *SMALL, *options) as running:
        yield running, run
        running.stop()


def training_of(running: Serving) -> int:
    """The process in which the server trains."""
    assert running.process.pid is not None
    children = children_of(running.process.pid)
    (child,) = (one for one in children if b"finesight.cli.background" in Path(f"/proc/{one}/cmdline").read_bytes())
    return child


def verdict(run: Path, verdict: str, kept: str, words: str) -> None:
    facts = {"verdict": verdict, "kept": kept, "by": "clicks", "words": words}
    write_atomic(run / "verdict.json", json.dumps(facts))


def test_search_at_once_then_before_and_after(browser: Browser, up: tuple[Serving, Path], tmp_path: Path) -> None:
    running, run = up
    with opened(browser, running.url) as tab:
        page = tab.go()
        expect(page.locator("#count")).to_have_text(f"{ITEMS} pictures", timeout=PATIENT)
        running.until(lambda: (read_progress(run / "progress.json") or {}).get("loss") is not None)
        training = training_of(running)
        os.kill(training, signal.SIGSTOP)  # or it might be over before the browser has looked
        (run / "report.html").touch()  # drawing it takes longer than the training
        page.locator("#samples .open").first.click()
        tab.searched()
        expect(page.locator("#features")).to_be_hidden()  # there is nothing to choose yet
        # training is seen to go on
        expect(page.locator("#training-words")).to_contain_text("Training", timeout=PATIENT)
        expect(page.locator("#training-words")).to_contain_text("step", timeout=PATIENT)
        expect(page.locator("#training-more")).to_contain_text("%")
        page.screenshot(path=tmp_path / "training.png")
        os.kill(training, signal.SIGCONT)
        # then there are features to choose
        expect(page.locator("#features")).to_be_visible(timeout=PATIENT)
        before = names(page)
        page.locator("#features input[value=after]").check()
        tab.searched()
        assert tab.asked("search")[-1]["features"] == "after"
        assert "features=after" in page.url
        expect(page.get_by_text("Key parts")).to_be_visible()
        page.locator("#features input[value=before]").check()
        tab.searched()
        expect(page.locator("#hits .name")).to_have_text(before)
        assert "features" not in page.url  # the default as yet


def sides(tab: Tab) -> tuple[list[str], list[str]]:
    """The paths in both lists."""
    return tuple(  # type: ignore[return-value]
        tab.page.locator(f"{grid} .foot .name").evaluate_all("all => all.map((one) => one.title)")
        for grid in ("#hits", "#after-hits")
    )


def test_side_by_side_marks_what_changed(browser: Browser, up: tuple[Serving, Path], tmp_path: Path) -> None:
    running, _ = up
    with opened(browser, running.url) as tab:
        page = tab.go("?features=both")
        expect(page.locator("#training-both")).to_be_visible(timeout=PATIENT)
        page.locator("#samples .open").first.click()
        tab.searched()
        expect(page.locator("#after-side")).to_be_visible()
        old, new = sides(tab)
        assert len(old) == len(new) == 24
        badges = page.locator("#after-hits .card").evaluate_all(
            "all => all.map((card) => card.querySelector('.change')?.textContent ?? '')"
        )
        for place, (path, badge) in enumerate(zip(new, badges, strict=True)):
            moved = old.index(path) - place if path in old else None
            wanted = "new" if moved is None else "" if not moved else f"{'▲' if moved > 0 else '▼'} {abs(moved)}"
            assert badge == wanted, path
        gone = page.locator("#hits .card:has(.change.gone) .foot .name").evaluate_all(
            "all => all.map((one) => one.title)"
        )
        assert set(gone) == set(old) - set(new)
        assert len(gone) == badges.count("new") > 0
        expect(page.locator("#change-words")).to_contain_text(f"{len(gone)} of 24 pictures")
        page.screenshot(path=tmp_path / "sides.png")
        page.locator("#after-hits .why").first.click()  # explained by the network that found it
        expect(page.locator("#explain .heat[data-painted]")).to_have_count(2)
        assert tab.asked("explain")[-1]["features"] == "after"
        assert "why=after." in page.url  # a link names the list, too
        page.reload()
        expect(page.locator("#explain .heat[data-painted]")).to_have_count(2)
        assert [one["features"] for one in tab.asked("explain")] == ["after", "after"]


def test_the_verdict_switches_an_open_page(browser: Browser, up: tuple[Serving, Path], tmp_path: Path) -> None:
    running, run = up
    with opened(browser, running.url) as tab:
        page = tab.go()
        page.locator("#samples .open").first.click()
        tab.searched()
        verdict(run, "cannot tell", "frozen", "Whether training helped cannot be told.")
        expect(page.locator("#training-words")).to_have_text("Whether training helped cannot be told.")
        expect(page.locator("#training-judge")).to_have_attribute("href", "judge")
        expect(page.locator("#features input[value=before]")).to_be_checked()
        page.screenshot(path=tmp_path / "cannot-tell.png")
        old = names(page)
        verdict(run, "better", "trained", "Training helped.")
        expect(page.locator("#features input[value=after]")).to_be_checked()
        expect(page.locator("#training-words")).to_have_text("Training helped.")
        expect(page.locator("#training-judge")).to_be_hidden()
        expect(page.locator("#hits .name")).not_to_have_text(old)
        tab.searched()
        assert "features" not in page.url
        page.get_by_role("button", name="Close this message").first.click()
        expect(page.locator("#training")).to_be_hidden()
        told = (
            "Training made it worse. The frozen features are kept; `finesight verdict run.1 --keep trained` does not."
        )
        verdict(run, "worse", "frozen", told)  # clicks may decide anew
        expect(page.locator("#training-words")).to_have_text("Training made it worse. The frozen features are kept.")
        expect(page.locator("#features input[value=before]")).to_be_checked()
        tab.searched()
        expect(page.locator("#hits .name")).to_have_text(old)
