"""``finesight bench birds`` and the tables as a user types them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny

from finesight.paper.bench import run_birds, run_table
from finesight.paper.benchmark import Benchmark
from finesight.paper.rows import BIRD_ROWS
from processes import Finished, TooLate, command, in_time, refused, rows, succeeded

pytestmark = pytest.mark.slow


def bench(*args: str | Path) -> Finished:
    return command("bench", *args, "--quiet")


def places(folder: Path) -> dict[str, Any]:
    """Options of a run beside the finished one."""
    folders = {"runs": folder / "runs", "results": folder / "results"}
    return {"weights": "random", "runtime": tiny.runtime(folder), **folders}


@pytest.fixture
def shown(done: Benchmark) -> tuple[str | Path, ...]:
    return ("birds", "--show", "--results", done.store.folder.parent)


@pytest.fixture
def results(done: Benchmark, tmp_path: Path) -> Path:
    """Those of the finished birds, where the tables look for them."""
    root = tmp_path / "results"
    shutil.copytree(done.store.folder, root / "cub" / tiny.NAME)
    return root


# --- birds ------------------------------------------------------------------------------------------------------------


def test_show_prints_the_tables_or_some_rows_or_json(shown: tuple[str | Path, ...], done: Benchmark) -> None:
    out = succeeded(bench(*shown)).out
    assert all(row.label in out for row in BIRD_ROWS.values())
    assert "(49.69)" in out
    assert "LCR minus …" in out
    out = succeeded(bench(*shown, "--methods", "frozen, moco-v2")).out
    assert "MoCo v2, average" in out
    assert "MoCo v2, GeM" not in out
    assert "LCR minus" not in out, "LCR is not among them"
    found = json.loads(succeeded(bench(*shown, "--methods", "lcr", "--json")).out)
    assert found == {"lcr": {"0": done.store.read()["lcr"][0]}}


def test_update_and_figures(done: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures"
    page.write_text("<!-- bench:cpu-50:scores -->\n<!-- /bench -->\n<!-- bench:cpu-50:gains -->\n<!-- /bench -->\n")
    options: dict[str, Any] = {"results": done.store.folder.parent, "show": True, "page": page, "figures": figures}
    run_birds(done.profile, data=None, runs=done.runs, methods=["lcr"], **options)
    assert "is up to date now" in capsys.readouterr().err
    text = page.read_text()
    assert "| MoCo v2, GeM | 1 |" in text, "all rows, whichever are printed"
    assert (figures / "cpu-50-k.png").read_bytes().startswith(b"\x89PNG")
    assert not (figures / "cpu-50-attention.png").exists(), "no data, no birds"
    run_birds(done.profile, data=done.data, runs=done.runs, runtime=done.runtime, **options)
    assert "was up to date" in capsys.readouterr().err
    assert page.read_text() == text
    assert (figures / "cpu-50-attention.png").read_bytes().startswith(b"\x89PNG")
    run_birds(done.profile, data=done.data, runs=tmp_path, **options)
    assert "not both trained" in capsys.readouterr().err


def test_finished_birds_say_so_and_print(done: Benchmark, capsys: pytest.CaptureFixture[str]) -> None:
    folder = done.store.folder.parent
    run_birds(done.profile, data=done.data, runs=done.runs, results=folder, weights="random", seeds=[0])
    end = capsys.readouterr()
    assert "All of it is done." in end.err
    assert "trainings of about" not in end.err
    assert "LCR minus" in end.out


def test_a_dry_run_writes_nothing(done: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_birds(tiny.profile(seeds=(0, 1)), data=done.data, dry_run=True, **places(tmp_path))
    end = capsys.readouterr()
    assert "6 trainings of about" in end.err
    assert end.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_hand_it_says_so_and_continues(cub: Path, tmp_path: Path, number: signal.Signals) -> None:
    in_time(lambda place: stop_and_continue(cub, place, number), tmp_path)


def stop_and_continue(cub: Path, place: Path, number: signal.Signals) -> None:
    job = tiny.bench(cub, place, tiny.profile(epochs=10), ["moco-v2"])
    folder = place / "runs" / tiny.NAME / "moco-v2-seed0"
    code = tiny.Running(tiny.run, job).send_when(number, lambda: len(rows(folder)) >= 5)
    assert code != 0
    if len(rows(folder)) == 60:
        raise TooLate
    spent = json.loads((folder / "bench.json").read_text())["seconds"]
    assert len(rows(folder)) > 0
    with contextlib.redirect_stderr(io.StringIO()):
        tiny.run(job)
    assert len(rows(folder)) == 60
    row = json.loads(job.store.file("moco-v2", 0).read_text())
    assert row["seconds"] >= round(spent, 1) > 0, "both starts count"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("Give --data the folder CUB_200_2011", "--show")),
        (("--profile", "gpu"), ("There is no profile 'gpu'", "cpu-50")),
        (("--methods", "lcr,moco"), ("There is no method 'moco'", "moco-v2")),
        (("--seeds", "0,x"), ("--seeds takes whole numbers from 0 on", "'0,x'")),
        (("--seeds", "0,"), ("--seeds takes whole numbers from 0 on",)),
        (("--show",), ("There are no results in",)),
        (("--show", "--update", "no/such/page.md"), ("page.md cannot be read",)),
        (("--data", "no/such/folder"), ("does not exist",)),
    ],
)
def test_wrong_options(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(bench("birds", *options, "--runs", tmp_path / "runs", "--results", tmp_path / "results"), *words)
    assert list(tmp_path.iterdir()) == []


# --- tables -----------------------------------------------------------------------------------------------------------


def test_without_data_a_table_shows_what_there_is(results: Path, tmp_path: Path) -> None:
    end = succeeded(bench("table1", "--results", results))
    assert "CUB: ResNet-50" in end.out
    assert "Aircraft: Ours" in end.out
    assert "(a) profile cpu-50, 4 of 200 classes (48 train, 24 test images, short side 40 px)" in end.out
    assert "not to be compared with its numbers" in end.out
    nothing = succeeded(bench("table3", "--results", tmp_path / "none"))
    assert "collapse / –" in nothing.out
    assert "Nothing of profile cpu-50 was run yet." in nothing.out


def test_what_the_birds_have_done_is_not_trained_again(
    done: Benchmark, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_table("table1", done.profile, data=[str(done.data)], json_output=True, **places(tmp_path))
    end = capsys.readouterr()
    assert "All of it is done." in end.err
    assert not (tmp_path / "runs").exists()
    table = json.loads(end.out)["rows"]
    measured = json.loads((results / "cub" / tiny.NAME / "lcr-seed0.json").read_text())
    assert table["lcr"]["CUB"]["ours"]["rank1"] == {"mean": measured["retrieval"]["rank1"], "sd": None, "n": 1}
    assert table["lcr"]["Cars"]["ours"] is None


def test_a_missing_row_and_any_method_are_trained_beside_the_birds(
    done: Benchmark, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs of the birds lie in ``birds``: a lost result is scored from there, a new row trained there."""
    shutil.copytree(done.runs, tmp_path / "runs" / "birds")
    folder = results / "cub" / tiny.NAME
    (folder / "moco-v2-seed0.json").unlink()
    names = ["moco-v2", "lewel-byol"]
    options = places(tmp_path)
    run_table("table3", done.profile, data=[str(done.data)], methods=names, **options)
    end = capsys.readouterr()
    assert "lewel-byol (lewel-byol): 1 trainings of about" in end.err
    assert "lcr (moco-v2): 0 trainings of about" in end.err
    assert "lewel-byol" in end.out
    row = json.loads((folder / "lewel-byol-seed0.json").read_text())
    assert row["command"].startswith("finesight bench table3 --profile cpu-50 --methods lewel-byol --seeds 0 ")
    assert (tmp_path / "runs" / "birds" / tiny.NAME / "lewel-byol-seed0" / "encoder").is_dir()
    run_table("table3", done.profile, data=[str(done.data)], methods=names, **options)
    assert "All of it is done." in capsys.readouterr().err


def test_a_page_of_tables_is_updated(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = [f"<!-- bench:{name} -->\n<!-- /bench -->\n" for name in ("cpu-50:table3", "cpu-50:made", "cpu-200:table3")]
    page.write_text("".join(marks))
    first = succeeded(bench("table1", "--results", results, "--update", page))
    assert "is up to date now" in first.err
    text = page.read_text()
    assert "| CUB: Ours | lcr |" in text
    assert "- (a) profile cpu-50" in text
    assert text.endswith(marks[-1])
    assert "was up to date" in succeeded(bench("table2", "--results", results, "--update", page)).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--profile", "gpu"), ("There is no profile 'gpu'", "smoke")),
        (("--methods", "moco"), ("There is no method 'moco'", "moco-v2")),
        (("--data", "no/such/folder"), ("does not exist",)),
        (("--dry-run",), ("Give --data what the estimate is to be of",)),
        (("--update", "no/such/page.md"), ("page.md cannot be read",)),
    ],
)
def test_wrong_options_of_a_table(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(bench("table1", *options, "--runs", tmp_path / "runs", "--results", tmp_path / "results"), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_the_data_cannot_have_and_a_page_without_a_block(cub: Path, tmp_path: Path) -> None:
    options = ("birds", "--data", cub, "--weights", "random", "--runs", tmp_path / "r", "--results", tmp_path / "s")
    refused(bench(*options), "has 4 classes: it cannot be limited to 50")
    (tmp_path / "page.md").write_text("no block")
    refused(bench(*options, "--update", tmp_path / "page.md"), "page.md: There is no block to update")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_a_dry_run_of_the_paper_fits_or_says_why_not(cub: Path, tmp_path: Path) -> None:
    """A ResNet-50 at 224 px with 128 images a step. Each kind of training is timed for many seconds: one will do."""
    where = ("--runs", tmp_path / "runs", "--results", tmp_path / "results", "--methods", "lcr")
    end = bench("birds", "--profile", "paper", "--data", cub, "--weights", "random", "--dry-run", *where)
    assert "trainings of about" in end.err
    assert end.out == ""
    if end.code:
        assert end.code == 2
        assert "does not fit this machine" in end.err
        assert "GiB of memory and" in end.err or "GiB of disk and" in end.err
        assert "Traceback" not in end.err
    assert list(tmp_path.iterdir()) == []
