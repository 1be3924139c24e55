"""``finesight bench table1``, ``table2`` and ``table3`` as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny

from finesight.paper.engine import Bench
from processes import Finished, command, refused, succeeded


def table(name: str, *args: str | Path) -> Finished:
    return command("bench", name, "--quiet", *args)


@pytest.fixture
def results(done: Bench, tmp_path: Path) -> Path:
    """Those of the finished birds bench, where the tables look for them."""
    root = tmp_path / "results"
    shutil.copytree(done.results.folder, root / "cub" / tiny.NAME)
    return root


def test_without_data_it_shows_what_there_is(results: Path, tmp_path: Path) -> None:
    end = succeeded(table("table1", "--results", results))
    assert "CUB: ResNet-50" in end.out
    assert "Aircraft: Ours" in end.out
    assert "(a) profile cpu-50, 4 of 200 classes (48 train, 24 test images)" in end.out
    assert "not to be compared with its numbers" in end.out
    nothing = succeeded(table("table3", "--results", tmp_path / "none"))
    assert "collapse / –" in nothing.out
    assert "Nothing of profile cpu-50 was run yet." in nothing.out


def test_what_the_birds_bench_has_done_is_not_trained_again(done: Bench, results: Path, tmp_path: Path) -> None:
    args = ("--data", done.data, "--weights", "random", "--results", results, "--runs", tmp_path / "runs")
    end = succeeded(tiny.TinyCommand(done.profile, "bench", "table1", *args, "--json").wait())
    assert "All of it is done." in end.err
    assert not (tmp_path / "runs").exists()
    rows = json.loads(end.out)["rows"]
    measured = json.loads((results / "cub" / tiny.NAME / "lcr-seed0.json").read_text())
    assert rows["lcr"]["CUB"]["ours"]["rank1"] == {"mean": measured["retrieval"]["rank1"], "sd": None, "n": 1}
    assert rows["lcr"]["Cars"]["ours"] is None


def test_a_missing_row_is_trained_beside_the_birds(done: Bench, results: Path, tmp_path: Path) -> None:
    """The networks of the birds bench lie in ``birds``: a lost result is scored from there, a new row trained there."""
    runs = tmp_path / "runs"
    shutil.copytree(done.runs, runs / "birds")
    (results / "cub" / tiny.NAME / "moco-v2-seed0.json").unlink()
    args = ("--data", done.data, "--weights", "random", "--results", results, "--runs", runs)
    words = ("bench", "table3", *args, "--methods", "moco-v2,contrastive-crop", "--quiet")
    end = succeeded(tiny.TinyCommand(done.profile, *words).wait())
    assert "contrastive-crop: 1 trainings of about" in end.err
    assert "lcr: 0 trainings of about" in end.err
    row = json.loads((results / "cub" / tiny.NAME / "contrastive-crop-seed0.json").read_text())
    assert row["command"].startswith("finesight bench table3 --profile cpu-50 --methods contrastive-crop --seeds 0 ")
    assert "contrastive-crop" in end.out
    assert (runs / "birds" / tiny.NAME / "contrastive-crop-seed0" / "encoder").is_dir()
    again = succeeded(tiny.TinyCommand(done.profile, *words).wait())
    assert "All of it is done." in again.err


def test_a_page_is_updated(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:cpu-50:table3 -->\n<!-- /bench -->\n<!-- bench:cpu-200:table3 -->\n<!-- /bench -->\n")
    first = succeeded(table("table1", "--results", results, "--update", page))
    assert "is up to date now" in first.err
    text = page.read_text()
    assert "| CUB: Ours | lcr |" in text
    assert "- (a) profile cpu-50" in text
    assert text.endswith("<!-- bench:cpu-200:table3 -->\n<!-- /bench -->\n")
    assert "was up to date" in succeeded(table("table2", "--results", results, "--update", page)).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--profile", "gpu"), ("There is no profile 'gpu'", "smoke")),
        (("--methods", "byol"), ("There is no system 'byol'", "moco-v2")),
        (("--seeds", "0,x"), ("--seeds takes whole numbers from 0 on",)),
        (("--data", "no/such/folder"), ("does not exist",)),
        (("--dry-run",), ("Give --data what the estimate is to be of",)),
        (("--update", "no/such/page.md"), ("page.md cannot be read",)),
    ],
)
def test_wrong_options(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(table("table1", *options, "--runs", tmp_path / "runs", "--results", tmp_path / "results"), *words)
    assert list(tmp_path.iterdir()) == []


def test_other_data_and_results_of_other_settings(birds: Path, done: Bench, results: Path) -> None:
    refused(table("table1", "--data", birds), "The paper's tables are of CUB-200-2011", "lookalikes")
    refused(
        table("table1", "--data", done.data, "--weights", "random", "--results", results),
        "frozen-seed0.json has other settings",
    )
