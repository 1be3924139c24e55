"""Stanford Cars: what its forms allow beside the official trees, and wrong annotations."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from finesight.data.sources import open_source
from finesight.data.verification import verify
from layouts import (
    CARS,
    CARS_TEST,
    CARS_TRAIN,
    CORNERS,
    cars,
    cars_in_class_folders,
    cars_in_one_folder,
    facts,
    matlab_cell,
    matlab_struct,
    open_error,
    write_picture,
)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return cars(tmp_path).root


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return cars_in_one_folder(tmp_path).root


def annotate(file: Path, rows: list[Any], fields: tuple[str, ...] = (*CORNERS, "class", "fname")) -> None:
    savemat(file, {"annotations": matlab_struct(rows, fields)}, do_compression=True)


def test_annotations_may_lie_in_the_root(two: Path) -> None:
    expected = facts(open_source(two))
    (two / "devkit/cars_test_annos_withlabels.mat").rename(two / "cars_test_annos_withlabels.mat")
    assert facts(open_source(two)) == expected
    for file in (two / "devkit").iterdir():
        file.rename(two / file.name)
    (two / "devkit").rmdir()
    assert facts(open_source(two)) == expected


def test_folders_unpacked_into_folders(two: Path) -> None:
    for name in ("cars_train", "cars_test"):
        (two / name).rename(two / "inner")
        (two / name).mkdir()
        (two / "inner").rename(two / name / name)
    source = open_source(two)
    assert source.paths[0] == "cars_train/cars_train/00001.jpg"
    assert all(source.file(i).is_file() for i in range(5))


def test_the_order_is_that_of_the_annotations(two: Path) -> None:
    annotate(two / "devkit/cars_train_annos.mat", CARS_TRAIN[::-1])
    paths, labels, _, _, boxes = facts(open_source(two))
    assert paths[:3] == ["cars_train/00003.jpg", "cars_train/00002.jpg", "cars_train/00001.jpg"]
    assert labels[:3] == [0, 2, 1]
    assert boxes[0] == [2, 7, 188, 140]


def test_a_single_image_and_a_single_class(two: Path) -> None:
    """MATLAB has no vector of one: it is read as a scalar."""
    savemat(two / "devkit/cars_meta.mat", {"class_names": matlab_cell(("Audi",))})
    annotate(two / "devkit/cars_train_annos.mat", [(1, 2, 3, 4, 1, "00001.jpg")])
    annotate(two / "devkit/cars_test_annos_withlabels.mat", [(5, 6, 7, 8, 1, "00002.jpg")])
    paths, boxes = ["cars_train/00001.jpg", "cars_test/00002.jpg"], [[0, 1, 3, 3], [4, 5, 3, 3]]
    assert facts(open_source(two)) == (paths, [0, 0], ("Audi",), ["train", "test"], boxes)


def test_one_folder_with_the_other_devkit(one: Path) -> None:
    (one / "devkit").mkdir()
    (one / "cars_annos.mat").rename(one / "devkit/cars_annos.mat")
    savemat(one / "devkit/cars_meta.mat", {"class_names": matlab_cell(("other",))})
    (one / "cars_train").mkdir()
    assert open_source(one).classes == CARS


# --- partial and damaged copies -----------------------------------------------------------------------


def test_missing_test_labels_are_named(two: Path) -> None:
    (two / "devkit/cars_test_annos_withlabels.mat").unlink()
    assert "is Stanford Cars but devkit/cars_test_annos_withlabels.mat is missing" in open_error(two)
    annotate(two / "devkit/cars_test_annos.mat", [(*r[:4], r[5]) for r in CARS_TEST], (*CORNERS, "fname"))
    message = open_error(two)
    assert "is Stanford Cars but cars_test_annos_withlabels.mat is missing" in message
    assert "cars_test_annos.mat has no labels, so without it there are no test labels" in message


def test_images_or_annotations_alone_are_called_a_partial_copy(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "devkit", tmp_path / "alone")
    shutil.rmtree(two / "devkit")
    assert "is Stanford Cars but devkit/cars_meta.mat is missing" in open_error(two)
    assert "is Stanford Cars but cars_train/ is missing" in open_error(tmp_path / "alone")


def test_one_folder_without_its_annotations(one: Path) -> None:
    (one / "cars_annos.mat").unlink()
    (one / "cars_test").mkdir()
    assert "is Stanford Cars but cars_annos.mat is missing" in open_error(one)


def test_images_sorted_into_classes_are_no_copy(two: Path) -> None:
    """Somebody sorted them and left the annotations beside."""
    for split in ("train", "test"):
        (two / f"cars_{split}").rename(two / split)
    assert open_source(two).kind == "splits"


# --- class folders of a mirror ------------------------------------------------------------------------


def test_class_folders_are_the_images_that_plain_folders_are(tmp_path: Path) -> None:
    """A run on the folder before it was recognized goes on: paths, labels and order are the same."""
    root = cars_in_class_folders(tmp_path).root
    (root / "devkit").mkdir()
    (root / "devkit/cars_meta.mat").write_bytes(b"left there")
    source = open_source(root)
    other = tmp_path / "others"
    shutil.copytree(root / "train", other / "train")
    shutil.copytree(root / "test", other / "test")
    for split in ("train", "test"):  # two known names are needed: these are somebody's cars
        if (other / split / "Audi TTS Coupe 2012").exists():
            (other / split / "Audi TTS Coupe 2012").rename(other / split / "Audi TTS Cabrio 2012")
    plain = open_source(other)
    assert (source.kind, plain.kind) == ("cars", "splits")
    assert [path.replace("Cabrio", "Coupe") for path in plain.paths] == list(source.paths)
    assert plain.labels is not None
    assert plain.labels.tolist() == facts(source)[1]


def test_what_a_mirror_lacks_is_said(tmp_path: Path) -> None:
    root = cars_in_class_folders(tmp_path).root
    words = verify(root).words()
    assert "8,138 of 8,144 train images missing; 8,039 of 8,041 test images missing; 193 of 196 classes" in words
    assert words.endswith("; this form has no boxes")
    message = open_error(f"cars:{root}")
    assert "is not the whole Stanford Cars: 8,138 of 8,144 train images missing" in message
    assert "leave out cars: to use what is there" in message


def test_a_whole_mirror_is_whole_without_boxes(tmp_path: Path) -> None:
    """All of the images, empty files here: listing does not open them."""
    names = sorted({*(f"Make Model {i:03d} 2012" for i in range(194)), *CARS[1:]})
    for split, count in (("train", 8144), ("test", 8041)):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / split / names[i % 196] / f"{i:05d}.jpg").touch()
    assert verify(tmp_path).words().endswith("every listed file is there; this form has no boxes")
    assert len(open_source(f"cars:{tmp_path}")) == 16185
    write_picture(tmp_path / "train" / names[0] / "more.jpg")
    assert "8,145 train images where 8,144 belong" in open_error(f"cars:{tmp_path}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"other": 1}, "no annotations"),
        ({"annotations": np.arange(3)}, "no bbox_x1 in the annotations"),
        ({"annotations": matlab_struct([(1, 2, 3, 4, "a.jpg")], (*CORNERS, "fname"))}, "no class in the annotations"),
        ({"annotations": matlab_struct([(1, 2, 3, 4, 5)], (*CORNERS, "class"))}, "no fname in the annotations"),
        ({"annotations": matlab_struct([(*"1234", 1, 5)])}, "fname are not all names"),
        ({"annotations": matlab_struct([(1, 2, 3, "", 1, "a.jpg")])}, ""),
        ({"annotations": matlab_struct([(1, 2, 3, "x", 1, "a.jpg")])}, "could not convert"),
        ({"annotations": matlab_struct([(1, 2, 3, 4, 1, "")])}, "fname are not all names"),
        ({"annotations": matlab_struct([])}, ""),
        *(
            ({"annotations": matlab_struct([(1, 2, 3, 4, n, "a.jpg")])}, f"class {n:g} is not one of 1 to 3)")
            for n in (0, 4, 1.5, 200)
        ),
    ],
)
def test_wrong_annotations_are_named(two: Path, content: dict[str, Any], expected: str) -> None:
    savemat(two / "devkit/cars_train_annos.mat", content)
    assert f"cars_train_annos.mat is damaged ({expected}" in open_error(two)


def test_without_scipy(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert "which SciPy reads; install it: pip install scipy" in open_error(two)
