"""``finesight inspect`` says in plain words what is in a folder, as a new user has it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.main import app
from finesight.data.inspection import SAMPLE, inspect_source
from finesight.data.sources import open_source
from real_birds import cub_root


def inspected(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["inspect", str(folder), "--quiet", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def picture(file: Path, side: int, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (side, side + 10, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, format="jpeg")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Photos as people have them, and what else lies in such folders."""
    folder = tmp_path / "my photos"
    names = ("bird 1.JPG", "Vogel ä.jpeg", "鳥.jpg", "plain.jpg", "sub/deeper.jpg", "small.jpg")
    for seed, name in enumerate(names):
        picture(folder / name, 40 if name == "small.jpg" else 100 + 10 * seed, seed)
    shutil.copy(folder / "plain.jpg", folder / "sub" / "copy of plain.jpg")
    (folder / "notes.txt").write_text("seen on Sunday")
    (folder / "broken.jpg").write_bytes((folder / "plain.jpg").read_bytes()[:300])
    (folder / "empty.jpg").touch()
    return folder


def test_in_plain_words(odd: Path) -> None:
    lines = dict(line.split(": ", 1) for line in inspected(odd).splitlines() if ": " in line)
    assert lines[f"folder {odd}"] == "9 images"
    assert lines["formats"] == "8 .jpg, 1 .jpeg"
    assert lines["where"] == "7 directly in it, 2 one folder deep"
    assert lines["labels"].startswith("none (7 images beside the folders")
    assert lines["splits"].startswith("none")
    assert lines["size"] == "short side 40 to 140 px, median 120"
    assert lines["unreadable"].startswith("2, broken.jpg: ")
    assert "empty.jpg" in lines["unreadable"]
    assert lines["tiny"] == "1 with a short side below 64 px, small.jpg: 50×40"
    assert lines["copies"] == "1 file with the bytes of another, sub/copy of plain.jpg"
    assert lines["names"].startswith("3 with spaces, 2 with letters beyond ASCII, 1 with an upper-case ending")
    assert lines["left out"].startswith("1, notes.txt: not an image file")
    assert f"`finesight datasets check {odd}`" in inspected(odd)


def test_json(odd: Path) -> None:
    facts = json.loads(inspected(odd, "--json"))
    assert (facts["images"], facts["kind"], facts["opened"]) == (9, "folder", 9)
    assert facts["short_side"] == {"smallest": 40, "median": 120.0, "largest": 140}
    assert facts["levels"] == {"0": 7, "1": 2}
    assert [file["path"] for file in facts["unreadable"]] == ["broken.jpg", "empty.jpg"]
    assert facts["tiny"] == [{"path": "small.jpg", "width": 50, "height": 40}]
    assert (facts["equal_files"], facts["splits"], facts["classes"]) == (1, None, [])


def test_labels_and_splits(birds: Path, class_folders: Path, tmp_path: Path) -> None:
    said = inspected(class_folders)
    assert "labels: the name of the top folder, 4 classes (" in said
    assert "training needs no labels and does not read them" in said
    said = inspected(birds)
    assert "splits: 48 train, 24 test; only train is trained on" in said
    one = tmp_path / "one"
    picture(one / "all" / "a.jpg", 80, 0)
    assert "labels: none (there is only one folder with images)" in inspected(one)
    picture(tmp_path / "flat" / "a.jpg", 80, 0)
    assert "labels: none (all images lie in one folder)" in inspected(tmp_path / "flat")
    (tmp_path / "list.txt").write_text("flat/a.jpg\n")
    said = inspected(tmp_path / "list.txt")
    assert "the list has no column of labels" in said
    assert "where:" not in said


def test_names_that_are_no_text(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "a.jpg", 80, 0)
    strange = os.fsdecode(b"caf\xe9.jpg")
    try:
        shutil.copy(tmp_path / "photos" / "a.jpg", tmp_path / "photos" / strange)
    except OSError:
        pytest.skip("this file system takes no such name")
    assert "1 that are no valid UTF-8" in inspected(tmp_path / "photos")
    assert json.loads(inspected(tmp_path / "photos", "--json"))["odd_names"] == {"that are no valid UTF-8": 1}


def test_of_many_images_some_are_opened(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "0.jpg", 80, 0)
    for number in range(1, SAMPLE + 50):
        os.link(tmp_path / "photos" / "0.jpg", tmp_path / "photos" / f"{number}.jpg")
    found = inspect_source(open_source(tmp_path / "photos"), progress=False)
    assert found.check.images == SAMPLE
    assert any(f"opened: 1,000 of {SAMPLE + 50:,}" in line for line in found.lines())


def test_200_real_birds(tmp_path: Path) -> None:
    for file in sorted((cub_root() / "images").glob("*/*.jpg"))[::58][:200]:
        shutil.copy(file, tmp_path / f"My {file.name.upper()}")
    said = inspected(tmp_path)
    assert ": 200 images" in said
    assert "200 with spaces, 200 with an upper-case ending" in said
    assert "px, median " in said
