"""``finesight bench birds`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny

from finesight.paper.engine import Bench
from finesight.paper.systems import SYSTEMS
from processes import Finished, command, refused, succeeded


@pytest.fixture
def shown(done: Bench) -> tuple[str | Path, ...]:
    return ("bench", "birds", "--show", "--results", done.results.folder.parent)


def bench(*args: str | Path) -> Finished:
    return command("bench", "birds", "--quiet", *args)


def test_show_prints_the_tables(shown: tuple[str | Path, ...]) -> None:
    out = succeeded(command(*shown)).out
    assert all(system.words in out for system in SYSTEMS.values())
    assert "(49.69)" in out
    assert "LCR minus …" in out


def test_show_of_some_rows_and_as_json(shown: tuple[str | Path, ...], done: Bench) -> None:
    out = succeeded(command(*shown, "--methods", "frozen, moco-v2")).out
    assert "MoCo v2, average" in out
    assert "MoCo v2, GeM" not in out
    assert "LCR minus" not in out, "LCR is not among them"
    found = json.loads(succeeded(command(*shown, "--methods", "lcr", "--json")).out)
    assert found == {"lcr": {"0": done.results.read()["lcr"][0]}}


def test_update_and_figures(shown: tuple[str | Path, ...], done: Bench, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:cpu-50:scores -->\n<!-- /bench -->\n<!-- bench:cpu-50:gains -->\n<!-- /bench -->\n")
    first = succeeded(command(*shown, "--update", page, "--figures", tmp_path / "figures", "--methods", "lcr"))
    assert "is up to date now" in first.err
    text = page.read_text()
    assert "| MoCo v2, GeM | 1 |" in text, "all rows, whichever are printed"
    assert (tmp_path / "figures" / "cpu-50-k.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "figures" / "cpu-50-attention.png").exists(), "no data, no birds"
    more = ("--data", done.data, "--runs", done.runs, "--figures", tmp_path / "figures")
    again = succeeded(tiny.TinyCommand(done.profile, *shown, "--update", page, *more).wait())
    assert "was up to date" in again.err
    assert page.read_text() == text
    assert (tmp_path / "figures" / "cpu-50-attention.png").read_bytes().startswith(b"\x89PNG")
    last = succeeded(command(*shown, "--data", done.data, "--runs", tmp_path, "--figures", tmp_path / "figures"))
    assert "not both trained" in last.err


def test_a_finished_bench_says_so_and_prints(done: Bench) -> None:
    places = ("--runs", done.runs, "--results", done.results.folder.parent, "--weights", "random")
    end = succeeded(
        tiny.TinyCommand(done.profile, "bench", "birds", "--data", done.data, "--seeds", "0", *places).wait()
    )
    assert "All of it is done." in end.err
    assert "trainings of about" not in end.err
    assert "LCR minus" in end.out


def test_a_dry_run_writes_nothing(cub: Path, tmp_path: Path) -> None:
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results", "--cache-dir", tmp_path / "cache")
    words = ("bench", "birds", "--data", cub, "--weights", "random", "--dry-run", *places)
    end = succeeded(tiny.TinyCommand(tiny.profile(seeds=(0, 1)), *words).wait())
    assert "6 trainings of about" in end.err
    assert end.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("Give --data the folder CUB_200_2011", "--show")),
        (("--profile", "gpu"), ("There is no profile 'gpu'", "cpu-50")),
        (("--methods", "lcr,moco"), ("There is no system 'moco'", "moco-v2")),
        (("--seeds", "-1"), ("--seeds takes whole numbers from 0 on", "'-1'")),
        (("--seeds", "0,x"), ("--seeds takes whole numbers from 0 on", "'0,x'")),
        (("--seeds", "0,"), ("--seeds takes whole numbers from 0 on",)),
        (("--show",), ("There are no results in",)),
        (("--show", "--update", "no/such/page.md"), ("page.md cannot be read",)),
        (("--data", "no/such/folder"), ("does not exist",)),
    ],
)
def test_wrong_options(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(bench(*options, "--runs", tmp_path / "runs", "--results", tmp_path / "results"), *words)
    assert list(tmp_path.iterdir()) == []


def test_wrong_data_and_weights(birds: Path, cub: Path, tmp_path: Path) -> None:
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results", "--profile", "paper")
    refused(bench("--data", birds, *places), "needs CUB_200_2011 in its official layout", "lookalikes")
    refused(bench("--data", cub, "--weights", tmp_path / "none.pth", *places), "none.pth", "no such file")
    refused(bench("--data", cub, *places[:-2], "--weights", "random"), "has 4 classes: it cannot be limited to 50")
    assert list(tmp_path.iterdir()) == []


def test_a_page_without_a_block_is_refused_before_training(cub: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no block")
    options = ("--data", cub, "--weights", "random", "--update", page, "--runs", tmp_path / "runs")
    refused(bench(*options), "page.md: There is no block to update")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_dry_run_of_the_paper_fits_or_says_why_not(cub: Path, tmp_path: Path) -> None:
    """A ResNet-50 at 224 px with 128 images a step."""
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    end = bench("--profile", "paper", "--data", cub, "--weights", "random", "--dry-run", *places)
    assert "trainings of about" in end.err
    assert end.out == ""
    if end.code:
        assert end.code == 2
        assert "does not fit this machine" in end.err
        assert "GiB of memory and" in end.err
        assert "Traceback" not in end.err
    assert list(tmp_path.iterdir()) == []
