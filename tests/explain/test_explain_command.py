"""``finesight explain``: what it writes, what it says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.explain import explain, run_names
from finesight.errors import FineSightError
from finesight.explain.batch import split_groups
from finesight.training.run_folder import RunFolder

pytestmark = pytest.mark.slow

RunOf = Callable[..., RunFolder]
app = typer.Typer()
app.command()(explain)


def run(*args: str | Path) -> dict[str, Any]:
    """The summary that --json prints."""
    done = CliRunner().invoke(app, [*map(str, args), "--json", "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*args: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, args), "--quiet"])
    assert isinstance(done.exception, FineSightError), (done.output, done.exception)
    return str(done.exception)


@pytest.fixture(scope="module")
def out(lcr: Path, birds: Path, run_of: RunOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs beside each other on nine images, and a pair."""
    folder = tmp_path_factory.mktemp("explain") / "out"
    pair = sorted(birds.glob("test/*/*.png"))[:2]
    run(lcr, birds, "-o", folder, "--beside", run_of("vicreg").root, "--count", "9", "--pair", *pair)
    return folder


def test_everything_that_is_said_to_be_written_is(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert summary["explained"] == len(summary["images"]) == 9
    assert summary["figures"] == ["figure1.png", "projections-lcr.png", "similarity.png"]
    assert [entry["gradcam"] for entry in summary["runs"]] == [True, True]
    named = {file for image in summary["images"] for files in image["overlays"].values() for file in files}
    written = {str(file.relative_to(out)) for file in out.rglob("*.png")}
    assert written == named | set(summary["figures"])
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} - written == {"index.html", "summary.json"}
    lcr, vicreg = summary["images"][0]["overlays"].values()
    assert [re.sub(r".*-", "", re.sub(r"projection-\d+", "projection", file)) for file in lcr] == [
        *("mask.png", "energy.png", "gradcam.png"),
        *["projection.png"] * 3,
    ]
    assert len(vicreg) == 2
    with Image.open(out / lcr[0]) as image:
        assert image.size == (256, 256)


def test_projections_are_ranked_and_every_cell_is_won_once(out: Path) -> None:
    rows = json.loads((out / "summary.json").read_text())["runs"][0]["projections"]
    assert sorted(row["projection"] for row in rows) == [0, 1, 2, 3]
    variances = [row["variance"] for row in rows]
    assert variances == sorted(variances, reverse=True)
    assert sum(row["cells won"] for row in rows) == pytest.approx(1)


def test_the_pair_sums_to_its_score(out: Path) -> None:
    pair = json.loads((out / "summary.json").read_text())["pair"]
    assert pair["by"] == "rationale-gem"
    assert np.sum(pair["query_map"]) == pytest.approx(pair["score"])
    assert sum(part["share"] for part in pair["projections"]) == pytest.approx(pair["score"])


def test_the_page_is_one_file_with_every_figure(out: Path) -> None:
    page = (out / "index.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count("<img") == 3 + 2, "three figures, and nine images by eight"
    for words in ("Where they look", "Why these two are alike", "Projections of lcr", "vicreg"):
        assert words in page


def test_unreadable_images_are_skipped_and_said_odd_names_are_kept(lcr: Path, unlabeled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("image-00.png", "image-01.png", "broken.png", "notes.txt"):
        shutil.copy(unlabeled / name, folder)
    for name in ("чайка №1.png", "Image-00.png", "$x_{1}$ <b>.png"):
        shutil.copy(folder / "image-00.png", folder / name)
    summary = run(lcr / "encoder", folder, "-o", tmp_path / "out", "--all", "--lowest", "0", "--top", "1")
    assert summary["explained"] == 5
    assert summary["skipped"][0]["reason"].startswith("not an image file")
    assert any("broken.png" in entry["path"] for entry in summary["skipped"])
    assert "without its run" in summary["runs"][0]["no_gradcam"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "without its run" in page
    assert "broken.png" in page
    files = [file.name.casefold() for file in (tmp_path / "out" / "overlays").rglob("*.png")]
    assert len(files) == len(set(files)) == 5 * 3


def test_one_image_and_a_loss_that_needs_two(run_of: RunOf, birds: Path, tmp_path: Path) -> None:
    file = next(birds.glob("test/*/*.png"))
    summary = run(run_of("simclr").root, file, "-o", tmp_path)
    assert summary["runs"][0]["gradcam"] is False
    assert "2 or more" in summary["runs"][0]["no_gradcam"]
    assert summary["figures"] == ["figure1.png"]


def test_the_same_again_is_the_same(lcr: Path, birds: Path, tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        run(lcr, birds, "-o", tmp_path, "--count", "2")
        contents.append({file: file.read_bytes() for file in tmp_path.rglob("*.*")})
    assert contents[0] == contents[1]


def test_wrong_input(lcr: Path, birds: Path, unlabeled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "holds no encoder" in refused(tmp_path, birds, "-o", out)
    assert "does not exist" in refused(lcr, tmp_path / "none", "-o", out)
    assert "None of the 1 images can be read" in refused(lcr, unlabeled / "broken.png", "-o", out)
    assert "no file" in refused(lcr, birds, "-o", out, "--pair", "a.png", "b.png")
    assert "--pair" in refused(lcr, birds, "-o", out, "--pooling", "average")
    assert "twice" in refused(lcr, birds, "-o", out, "--beside", lcr)
    (tmp_path / "file").write_text("")
    assert "cannot be made a folder" in refused(lcr, birds, "-o", tmp_path / "file")


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert run_names([Path("/a/lcr"), Path("/b/moco")]) == ["lcr", "moco"]
    assert run_names([Path("/a/lcr"), Path("/b/lcr")]) == ["a/lcr", "b/lcr"]
    assert run_names([Path("/x/a/lcr"), Path("/y/a/lcr")]) == ["/x/a/lcr", "/y/a/lcr"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 9])
def test_no_group_of_one_unless_there_is_but_one(count: int) -> None:
    items: list[Any] = [(i, []) for i in range(count)]
    groups = list(split_groups(iter(items), 3))
    assert [item for group in groups for item in group] == items
    assert all(1 < len(group) <= 4 for group in groups) or count == 1
