"""``finesight clean``: what it finds, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import finesight
from finesight.cli.clean import clean as clean_command
from finesight.curation.findings import Cleaning
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from messy_photos import BLURRED, COPIED, DARK, MIRRORED, WRONG

app = typer.Typer()
app.command()(clean_command)


def clean(*args: str | Path) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def found(messy: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cleaning, Path]:
    out = tmp_path_factory.mktemp("clean") / "clean"
    return finesight.clean(messy, run, out=out, progress=False, same=0.99999, threshold=0.5), out


def test_wrong_labels_are_suspected_first(found: tuple[Cleaning, Path]) -> None:
    first, second = sorted(found[0].suspects[:2], key=lambda one: one.path)
    assert (first.path, first.given, first.suggested) == (COPIED, "blue", "red")
    assert (second.path, second.given, second.suggested) == (WRONG, "green", "red")
    assert second.score > 0.5
    assert len(second.neighbors) == 5
    assert {one.path for one in found[0].suspects} <= {WRONG, COPIED, DARK, BLURRED}


def test_copies_are_grouped_with_their_kind_and_conflict(found: tuple[Cleaning, Path]) -> None:
    groups = {frozenset(copy.path for copy in group.images): group for group in found[0].duplicates}
    mirrored = groups[frozenset(["red/photo-05.png", MIRRORED])]
    equal = groups[frozenset(["red/photo-07.png", COPIED])]
    assert (mirrored.kind, mirrored.conflicts, mirrored.leaks) == ("mirrored", False, False)
    assert (equal.kind, equal.conflicts) == ("exact", True)
    assert all({MIRRORED, COPIED, DARK, BLURRED} & paths for paths in groups)


def test_outliers_say_why(found: tuple[Cleaning, Path]) -> None:
    why = {one.path: one.why for one in found[0].outliers}
    assert "too dark" in why[DARK]
    assert "blurred" in why[BLURRED]


def test_the_table_has_a_row_for_each_finding(found: tuple[Cleaning, Path]) -> None:
    cleaning, out = found
    rows = table(out / "clean.csv")
    assert {row["kind"] for row in rows} == {"label", "duplicate", "outlier"}
    assert len(rows) == len(cleaning.rows) == len(cleaning.to_pandas())
    suspect = next(one for one in cleaning.suspects if one.path == WRONG)
    row = next(row for row in rows if row["path"] == WRONG)
    assert row | {"score": ""} == {
        "path": WRONG, "kind": "label", "why": "", "score": "", "given": "green", "suggested": "red",
        "partner": next(near.path for near in suspect.neighbors if near.label == "red"), "split": "", "decision": "",
    }  # fmt: skip
    assert not any(row["decision"] for row in rows)


def test_the_page_has_every_finding_and_loads_nothing(found: tuple[Cleaning, Path]) -> None:
    page = (found[1] / "report.html").read_text()
    for path in (WRONG, DARK, BLURRED):
        assert path in page
    assert "=copy.png" in page
    assert "broken.png" in page
    assert "green → red" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("data:image/webp") > 20


def test_command_says_what_it_found_and_a_second_run_embeds_nothing(messy: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    facts = json.loads(clean(messy, "--run", run, "-o", out, "--json", "--quiet"))
    assert facts["images"] == 46
    assert facts["skipped"] == 1
    assert facts["suspects"] >= 1
    parts = {file: file.stat().st_mtime_ns for file in (out / "features").glob("part-*")}
    said = clean(messy, "--run", run, "-o", out, "--quiet")
    assert {file: file.stat().st_mtime_ns for file in (out / "features").glob("part-*")} == parts
    assert "suspected label" in said
    assert "Nothing was changed" in said


def test_without_labels_copies_and_outliers_are_found(messy: Path, run: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in messy.glob("red/*.png"):
        shutil.copy(file, flat / file.name)
    cleaning = finesight.clean(flat, run, progress=False, same=0.99999)
    assert cleaning.wrong is None
    assert not cleaning.suspects
    assert "no labels" in cleaning.notes[0]
    assert [group.kind for group in cleaning.duplicates] == ["mirrored"]


def test_the_same_picture_in_train_and_test_is_leakage(messy: Path, run: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    for split, names in (("train", range(5)), ("test", range(5, 10))):
        for color in ("red", "blue"):
            (root / split / color).mkdir(parents=True)
            for i in names:
                shutil.copy(messy / color / f"photo-{i:02d}.png", root / split / color)
    shutil.copy(messy / "red" / "photo-01.png", root / "test" / "red" / "again.png")
    facts = json.loads(clean(root, "--run", run, "-o", tmp_path / "out", "--json", "--quiet"))
    assert facts["leaks"] >= 1
    rows = table(tmp_path / "out" / "clean.csv")
    copy = next(row for row in rows if row["path"] == "test/red/again.png" and row["kind"] == "duplicate")
    assert (copy["why"], copy["split"]) == ("exact", "test")


def test_what_most_images_are_makes_no_outlier(run: Path, tmp_path: Path) -> None:
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 20, 3), np.uint8)
        (tmp_path / "tiny").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "tiny" / f"{i}.png")
    cleaning = finesight.clean(tmp_path / "tiny", run, progress=False)
    assert not any("small" in one.why for one in cleaning.outliers)
    assert any("12 images are small" in note for note in cleaning.notes)


def test_decisions_become_a_list_that_is_data(messy: Path, found: tuple[Cleaning, Path], tmp_path: Path) -> None:
    decided = {(WRONG, "label"): "relabel", ("red/photo-07.png", "duplicate"): "drop", (DARK, "outlier"): "Drop"}
    rows = table(found[1] / "clean.csv")
    for row in rows:
        row["decision"] = decided.get(
            (row["path"].lstrip("'"), row["kind"]), "keep" if row["kind"] == "outlier" else ""
        )
    with (tmp_path / "edited.csv").open("w", newline="", encoding="utf-8-sig") as stream:  # as a spreadsheet saves it
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    said = clean(messy, "--apply", tmp_path / "edited.csv", "-o", tmp_path / "labels.csv")
    assert "1 relabeled, 2 dropped" in said
    corrected, before = open_source(tmp_path / "labels.csv"), open_source(messy)
    assert len(corrected) == len(before) - 2
    labels = {str(corrected.file(i)): corrected.classes[corrected.labels[i]] for i in range(len(corrected))}
    assert labels[str(messy / WRONG)] == "red"
    assert labels[str(messy / "green" / "photo-04.png")] == "green"
    assert str(messy / "red" / "photo-07.png") not in labels
    assert (messy / "red" / "photo-07.png").exists()  # nothing is deleted


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("path,suggested,decision\nred/photo-01.png,blue,delete\n", "none of keep, relabel and drop"),
        ("path,suggested,decision\nred/photo-01.png,,relabel\n", "needs a label"),
        ("path,suggested,decision\nred/photo-01.png,bleu,relabel\n", "Nearest: blue"),
        ("path,suggested,decision\n../../etc/passwd,,drop\n", "leaves the folder"),
        ("path,suggested,decision\nred/gone.png,,drop\n", "None of the labels is of an image"),
        ("path,suggested\nred/photo-01.png,blue\n", "no column 'decision'"),
        ("path,suggested,decision\n", "nothing to apply"),
    ],
)
def test_decisions_that_make_no_sense(messy: Path, tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "clean.csv").write_text(lines)
    with pytest.raises(FineSightError, match=words):
        clean(messy, "--apply", tmp_path / "clean.csv", "-o", tmp_path / "labels.csv")
    assert not (tmp_path / "labels.csv").exists()


def test_a_new_class_is_taken_if_it_is_meant(messy: Path, tmp_path: Path) -> None:
    (tmp_path / "clean.csv").write_text("path,suggested,decision\nred/photo-01.png,scarlet,relabel\n")
    clean(messy, "--apply", tmp_path / "clean.csv", "-o", tmp_path / "labels.csv", "--new-labels")
    assert open_source(tmp_path / "labels.csv").classes == ("blue", "green", "red", "scarlet")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-o", "{data}/clean"), "nothing is written among the images"),
        (("-o", "{data}/red/photo-01.png"), "is a file"),
        (("-o", "{tmp}/out", "--new-labels"), "about --apply"),
        (("-o", "{tmp}/out", "--backbone", "resnet18"), "--run brings its own network"),
        (("-o", "{tmp}", "--apply", "{data}/nothing.csv"), "cannot be read"),
    ],
)
def test_wrong_arguments(messy: Path, run: Path, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    given = [arg.format(data=messy, tmp=tmp_path) for arg in args]
    with pytest.raises(FineSightError, match=words):
        clean(messy, "--run", run, *given)
