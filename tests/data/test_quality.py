import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from typer.testing import CliRunner, Result

from finesight.cli.datasets import datasets_app
from finesight.data.cache import open_cache
from finesight.data.quality import CheckReport, check_source
from finesight.data.sources import open_source
from finesight.errors import FineSightError


def draw(path: Path, seed: int, size: tuple[int, int] = (300, 280)) -> Image.Image:
    """A picture of its own for each seed, with room to get brighter and darker."""
    coarse = np.random.default_rng(seed).integers(60, 190, (9, 9, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    save(image, path)
    return image


def save(image: Image.Image, path: Path, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits and classes with one of everything. Not to be written to."""
    root = tmp_path_factory.mktemp("check") / "data"
    for seed in range(6):
        draw(root / f"train/owl/{seed}.jpg", seed)
        draw(root / f"test/owl/{seed}.png", 100 + seed)
    for seed in range(4):
        draw(root / f"train/wren/{seed}.jpg", 200 + seed)
    shutil.copy(root / "train/owl/0.jpg", root / "train/owl/0 copy.jpg")  # exact, harmless
    first = draw(root / "train/wren/first.png", 300)  # near, one split, one label
    save(first, root / "train/wren/again.jpg", quality=50)
    save(first.resize((150, 140)), root / "train/wren/half.png")
    save(ImageEnhance.Brightness(first).enhance(1.15), root / "train/wren/bright.png")
    save(ImageEnhance.Brightness(first).enhance(0.85), root / "train/wren/dark.png")
    leak = draw(root / "train/owl/leak.png", 301)  # near, across the split
    save(leak, root / "test/owl/leaked.jpg", quality=80)
    shutil.copy(root / "train/wren/1.jpg", root / "test/owl/wrong.jpg")  # exact, across split and label
    draw(root / "test/robin/lonely.png", 302)
    draw(root / "train/owl/tiny.png", 303, (200, 63))
    draw(root / "train/owl/not tiny.png", 304, (200, 64))
    whole = (root / "train/owl/1.jpg").read_bytes()
    (root / "train/owl/half.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "test/owl/half.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "train/owl/empty.jpg").touch()
    save(Image.new("RGB", (300, 300), "white"), root / "train/owl/white.png")
    save(Image.new("RGB", (300, 300), "black"), root / "train/owl/black.png")
    (root / "train/owl/notes.txt").write_text("x")
    return root


@pytest.fixture(scope="module")
def report(tree: Path) -> CheckReport:
    return check_source(open_source(tree), progress=False)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(datasets_app, ["check", "--quiet", *map(str, args)])


def paths(report: CheckReport) -> dict[frozenset[str], str]:
    return {frozenset(image.path for image in group.images): group.kind for group in report.duplicates}


NEAR = frozenset(f"train/wren/{name}" for name in ("first.png", "again.jpg", "half.png", "bright.png", "dark.png"))
COPY = frozenset({"train/owl/0.jpg", "train/owl/0 copy.jpg"})
LEAK = frozenset({"train/owl/leak.png", "test/owl/leaked.jpg"})
WRONG = frozenset({"train/wren/1.jpg", "test/owl/wrong.jpg"})


def test_counts(report: CheckReport, tree: Path) -> None:
    assert report.images == len(list(tree.glob("*/*/*.*"))) - 1
    assert (report.kind, report.readable) == ("splits", report.images - 3)
    assert report.splits == {"test": 10, "train": report.images - 10}
    assert report.unlabeled == 0
    assert [entry.path for entry in report.left_out] == ["train/owl/notes.txt"]


def test_duplicates_leakage_and_conflicts(report: CheckReport) -> None:
    assert paths(report) == {NEAR: "near", COPY: "exact", LEAK: "near", WRONG: "exact"}
    assert {frozenset(image.path for image in group.images) for group in report.leaks} == {LEAK, WRONG}
    assert report.leaked == 2
    (conflict,) = report.conflicts
    assert {(i.path, i.kind, i.split, i.label) for i in conflict.images} == {
        ("test/owl/wrong.jpg", "exact", "test", "owl"),
        ("train/wren/1.jpg", "exact", "train", "wren"),
    }
    assert not report.clean


def test_what_is_unreadable_here_is_unreadable_in_training(report: CheckReport, tree: Path, tmp_path: Path) -> None:
    cache = open_cache(open_source(tree), 64, cache_dir=tmp_path, progress=False)
    found = [(image.path, image.reason) for image in (*report.left_out, *report.unreadable)]
    assert found == cache.skipped
    assert {Path(image.path).name for image in report.unreadable} == {"half.jpg", "empty.jpg"}


def test_tiny_small_and_blank(report: CheckReport, tree: Path) -> None:
    assert [(image.path, image.width, image.height) for image in report.tiny] == [("train/owl/tiny.png", 200, 63)]
    assert report.small_side == 256
    assert report.small == 3  # with half.png and "not tiny.png"
    assert check_source(open_source(tree), resolution=56, near=False, progress=False).small == 1
    assert check_source(open_source(tree), resolution=57, near=False, progress=False).small == 2
    assert report.blank == ("train/owl/black.png", "train/owl/white.png")


def test_classes_count_what_can_be_read(report: CheckReport) -> None:
    classes = report.classes
    assert classes is not None
    assert (classes.count, classes.median, classes.lonely) == (3, 9, ("robin",))
    assert (classes.smallest, classes.largest) == (("robin", 1), ("owl", report.readable - 10))


def test_without_near(tree: Path) -> None:
    report = check_source(open_source(tree), near=False, workers=1, progress=False)
    assert paths(report) == {COPY: "exact", WRONG: "exact"}
    assert report.leaked == 1
    assert report.blank is None


def test_a_copy_within_a_near_group(tmp_path: Path) -> None:
    image = draw(tmp_path / "a.png", 0)
    shutil.copy(tmp_path / "a.png", tmp_path / "b.png")
    save(image, tmp_path / "c.jpg", quality=60)
    (group,) = check_source(open_source(tmp_path), progress=False).duplicates
    assert group.kind == "near"
    assert [(i.path, i.kind) for i in group.images] == [("a.png", "exact"), ("b.png", "exact"), ("c.jpg", "near")]


def test_equal_length_is_not_equal(tmp_path: Path) -> None:
    for seed in range(3):
        draw(tmp_path / f"{seed}.bmp", seed)
    assert len({file.stat().st_size for file in tmp_path.iterdir()}) == 1
    assert check_source(open_source(tmp_path), progress=False).duplicates == ()


def test_turned_by_its_tag_is_the_same_picture(tmp_path: Path) -> None:
    image = draw(tmp_path / "upright.png", 0, (300, 90))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.jpg", exif=exif)
    report = check_source(open_source(tmp_path), resolution=80, progress=False)
    assert set(paths(report)) == {frozenset({"upright.png", "turned.jpg"})}
    assert report.small == 2  # 90 px, below 92


def test_flat_folder_without_labels(unlabeled: Path) -> None:
    report = check_source(open_source(unlabeled), progress=False)
    assert (report.kind, report.images, report.readable) == ("folder", 25, 24)
    assert report.classes is None
    assert report.splits is None
    assert report.unlabeled is None
    assert not report.leaks
    assert not report.conflicts
    assert len(report.tiny) == 24


def test_none_readable(tmp_path: Path) -> None:
    for name in ("x/a.jpg", "y/b.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    report = check_source(open_source(tmp_path), progress=False)
    assert report.readable == 0
    assert report.duplicates == ()
    assert report.classes is not None
    assert report.classes.lonely == ("x", "y")
    assert run(tmp_path).exit_code == 0


def test_files_out_of_reach(tmp_path: Path, no_access: Callable[[Path], Any]) -> None:
    for name in ("a.png", "b.png", "c.png", "d.png"):
        draw(tmp_path / name, ord(name[0]))
    source = open_source(tmp_path)
    (tmp_path / "a.png").unlink()
    (tmp_path / "b.png").unlink()
    os.mkfifo(tmp_path / "b.png")
    with no_access(tmp_path / "c.png"):
        report = check_source(source, progress=False)
    reasons = ["no such file or directory", "not a regular file", "permission denied"]
    assert [image.reason for image in report.unreadable] == reasons


# --- the command ------------------------------------------------------------------------------------


def test_for_people(tree: Path) -> None:
    done = run(tree)
    assert done.exit_code == 0
    assert f"splits {tree}: 33 images, 3 classes, 23 train + 10 test" in done.stdout
    for words in (
        "30 of 33 images readable",
        "3 unreadable\n",
        "  train/owl/empty.jpg: empty file (0 bytes)\n",
        "1 tiny (short side below 64 px)\n  train/owl/tiny.png: 200×63\n",
        "3 with a short side below 256 px",
        "3 classes: smallest robin (1 image), median 9, largest owl (20)",
        "4 groups of duplicates: 4 images with equal bytes, 7 more that look the same",
        "  exact: train/owl/0 copy.jpg, train/owl/0.jpg\n",
        "2 test images in train too (2 groups)",
        "1 group of duplicates with different labels",
    ):
        assert words in done.stdout


def test_few_examples(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 0)
    for number in range(10, 21):
        (tmp_path / f"{number}.jpg").touch()
        shutil.copy(tmp_path / "a.png", tmp_path / f"a{number}.png")
    out = run(tmp_path).stdout
    assert "  14.jpg: empty file (0 bytes)\n  and 6 more\n" in out
    assert "15.jpg" not in out
    assert "exact: a.png, a10.png, a11.png, a12.png, a13.png and 7 more\n" in out


def test_json_and_files(tree: Path, tmp_path: Path, report: CheckReport) -> None:
    out = tmp_path / "new" / "out"
    done = run(tree, "--json", "--out", out)
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts == json.loads(json.dumps(report.to_json()))
    assert facts == json.loads((out / "report.json").read_text())
    assert facts["leaked"] == 2
    assert sum(group["conflicts"] for group in facts["duplicates"]) == 1
    with open(out / "duplicates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["group", "path", "kind", "split", "label"]
    found = {frozenset(row["path"] for row in rows if row["group"] == number) for number in {r["group"] for r in rows}}
    assert found == {NEAR, COPY, LEAK, WRONG}
    assert {"group": "1", "path": "train/owl/0.jpg", "kind": "exact", "split": "train", "label": "owl"} in rows
    with open(out / "skipped.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4


@pytest.mark.parametrize("broken", ["unreadable", "leak"])
def test_strict(tmp_path: Path, broken: str) -> None:
    image = draw(tmp_path / "train/a.png", 0)
    draw(tmp_path / "test/b.png", 1)
    done = run(tmp_path, "--strict")
    counts = f"splits {tmp_path}: 2 images, 1 train + 1 test\n2 of 2 images readable\nno duplicates\n"
    assert (done.exit_code, done.stdout) == (0, counts)
    if broken == "leak":
        save(image, tmp_path / "test/c.jpg")
    else:
        (tmp_path / "train/c.jpg").write_bytes(b"no picture")
    assert run(tmp_path).exit_code == 0
    assert run(tmp_path, "--strict").exit_code == 1
    assert run(tmp_path, "--strict", "--no-near").exit_code == (broken != "leak")
    assert json.loads(run(tmp_path, "--strict", "--json").stdout)["clean"] is False


def test_odd_names(tmp_path: Path) -> None:
    names = ["ä ö.png", "鳥/🐦.png", "e\u0301.png", "é.png", "with\nnewline.png", 'comma, "x".png', "[red]x[/red].png"]
    names.append(os.fsdecode(b"latin\xe9.png"))
    for name in names:
        draw(tmp_path / "in" / name, 0)
    out = tmp_path / "out"
    done = run(tmp_path / "in", "--out", out)
    assert done.exit_code == 0, done.exception
    assert "1 group of duplicates: 8 images with equal bytes" in done.stdout
    with open(out / "duplicates.csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert sorted(row["path"] for row in csv.DictReader(file)) == sorted(names)
    (group,) = json.loads((out / "report.json").read_text())["duplicates"]
    assert sorted(image["path"] for image in group["images"]) == sorted(names)
    assert json.loads(run(tmp_path / "in", "--json").stdout)["duplicates"] == [group]


def test_out_must_be_a_folder(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tree, "--out", tmp_path / "file")
    assert isinstance(done.exception, FineSightError)
    assert "file exists; give --out another folder" in str(done.exception)


def test_real_birds(cub_root: Path) -> None:
    source = open_source(cub_root)
    few = source.select(range(0, len(source), len(source) // 300)[:300])
    report = check_source(few, progress=False)
    assert report.images == report.readable == 300
    assert not report.tiny
    assert report.classes is not None
    assert sum(len(group.images) for group in report.duplicates) < 10
