import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from finesight.data.layouts.cars import Cars
from finesight.data.sources import ImageSource, open_source
from finesight.data.verification import describe_differences
from finesight.errors import FineSightError

CLASSES = ["Ram C/V Cargo Van 2012", "Audi TTS Coupe 2012", "smart fortwo Convertible 2012"]
CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
TRAIN = [(39, 116, 569, 375, 2, "00001.jpg"), (1, 1, 255, 300, 3, "00002.jpg"), (3, 8, 190, 147, 1, "00003.jpg")]
TEST = [(30, 52, 246, 147, 3, "00001.jpg"), (100, 19, 576, 203, 2, "00002.jpg")]
ALL = [
    ("car_ims/000001.jpg", 112, 7, 853, 717, 1, 0),
    ("car_ims/000002.jpg", 48, 24, 441, 202, 1, 1),
    ("car_ims/000003.jpg", 200, 4, 255, 255, 3, 0),
]


def number(value: float) -> np.ndarray:
    """MATLAB stores a scalar as 1 x 1 in the smallest type that holds it."""
    return np.array([[value]], np.min_scalar_type(int(value)) if value == int(value) >= 0 else np.float64)


def struct(rows: list[Any], fields: tuple[str, ...]) -> np.ndarray:
    """A struct array of 1 x N, as in the originals."""
    out = np.empty((1, len(rows)), [(field, object) for field in fields])
    for i, row in enumerate(rows):
        out[0, i] = tuple(v if isinstance(v, str) else number(v) for v in row)
    return out


def cell(names: list[str]) -> np.ndarray:
    out = np.empty((1, len(names)), object)
    out[0] = names
    return out


def annotations(file: Path, rows: list[Any], fields: tuple[str, ...] = (*CORNERS, "class", "fname")) -> None:
    savemat(file, {"annotations": struct(rows, fields)}, do_compression=True)


def one_file(file: Path, rows: list[Any]) -> None:
    fields = ("relative_im_path", *CORNERS, "class", "test")
    savemat(file, {"annotations": struct(rows, fields), "class_names": cell(CLASSES)}, do_compression=True)


@pytest.fixture
def two(tmp_path: Path, picture: Callable[..., Path]) -> Path:
    """Archives unpacked side by side: cars_train.tgz, cars_test.tgz, car_devkit.tgz."""
    root = tmp_path / "cars"
    for row in TRAIN:
        picture(f"cars/cars_train/{row[-1]}")
    for row in TEST:
        picture(f"cars/cars_test/{row[-1]}")
    (root / "devkit").mkdir()
    savemat(root / "devkit/cars_meta.mat", {"class_names": cell(CLASSES)})
    annotations(root / "devkit/cars_train_annos.mat", TRAIN)
    annotations(root / "devkit/cars_test_annos.mat", [(*r[:4], r[5]) for r in TEST], (*CORNERS, "fname"))
    annotations(root / "devkit/cars_test_annos_withlabels.mat", TEST)
    return root


@pytest.fixture
def one(tmp_path: Path, picture: Callable[..., Path]) -> Path:
    """car_ims.tgz and cars_annos.mat."""
    for row in ALL:
        picture(f"cars/{row[0]}")
    one_file(tmp_path / "cars/cars_annos.mat", ALL)
    return tmp_path / "cars"


def facts(source: ImageSource) -> tuple[list[str], list[int], list[str], list[list[float]]]:
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.splits is not None
    assert source.boxes is not None
    assert source.boxes.dtype == np.float32
    return source.paths.tolist(), source.labels.tolist(), source.splits.tolist(), source.boxes.tolist()


def error(root: Path) -> str:
    assert Cars().recognizes(root)
    with pytest.raises(FineSightError) as caught:
        Cars().open(root)
    return str(caught.value)


# --- two folders --------------------------------------------------------------------------------------


def test_two_folders(two: Path) -> None:
    assert Cars().recognizes(two)
    source = Cars().open(two)
    assert source.kind == "cars"
    assert source.classes == tuple(CLASSES)
    assert facts(source) == (
        ["cars_train/00001.jpg", "cars_train/00002.jpg", "cars_train/00003.jpg"]
        + ["cars_test/00001.jpg", "cars_test/00002.jpg"],
        [1, 2, 0, 2, 1],
        ["train"] * 3 + ["test"] * 2,
        [[38, 115, 531, 260], [0, 0, 255, 300], [2, 7, 188, 140], [29, 51, 217, 96], [99, 18, 477, 185]],
    )
    assert all(source.file(i).is_file() for i in range(5))
    assert "5 images, 3 classes, 3 train + 2 test, boxes" in source.describe()
    words = describe_differences(source)
    assert words is not None
    assert "8,141 of 8,144 train images missing" in words


def test_annotations_may_lie_in_the_root(two: Path) -> None:
    expected = facts(Cars().open(two))
    (two / "devkit/cars_test_annos_withlabels.mat").rename(two / "cars_test_annos_withlabels.mat")
    assert facts(Cars().open(two)) == expected
    for file in (two / "devkit").iterdir():
        file.rename(two / file.name)
    (two / "devkit").rmdir()
    assert Cars().recognizes(two)
    assert facts(Cars().open(two)) == expected


def test_the_file_without_labels_is_not_needed(two: Path) -> None:
    (two / "devkit/cars_test_annos.mat").unlink()
    assert len(Cars().open(two)) == 5


def test_folders_unpacked_into_folders(two: Path) -> None:
    for name in ("cars_train", "cars_test"):
        (two / name).rename(two / "inner")
        (two / name).mkdir()
        (two / "inner").rename(two / name / name)
    source = Cars().open(two)
    assert source.paths[0] == "cars_train/cars_train/00001.jpg"
    assert all(source.file(i).is_file() for i in range(5))


def test_the_order_is_that_of_the_annotations(two: Path) -> None:
    annotations(two / "devkit/cars_train_annos.mat", TRAIN[::-1])
    paths, labels, _, boxes = facts(Cars().open(two))
    assert paths[:3] == ["cars_train/00003.jpg", "cars_train/00002.jpg", "cars_train/00001.jpg"]
    assert labels[:3] == [0, 2, 1]
    assert boxes[0] == [2, 7, 188, 140]
    assert facts(Cars().open(two)) == facts(Cars().open(two))


def test_a_single_image_and_a_single_class(two: Path) -> None:
    """MATLAB knows no vector of one: it is read as a scalar."""
    savemat(two / "devkit/cars_meta.mat", {"class_names": cell(["Audi"])})
    annotations(two / "devkit/cars_train_annos.mat", [(1, 2, 3, 4, 1, "00001.jpg")])
    annotations(two / "devkit/cars_test_annos_withlabels.mat", [(5, 6, 7, 8, 1, "00002.jpg")])
    source = Cars().open(two)
    assert source.classes == ("Audi",)
    assert facts(source) == (
        ["cars_train/00001.jpg", "cars_test/00002.jpg"],
        [0, 0],
        ["train", "test"],
        [[0, 1, 3, 3], [4, 5, 3, 3]],
    )


def test_single_missing_images_are_left_to_the_reader(two: Path) -> None:
    file = two / "cars_train/00002.jpg"
    file.rename(file.with_suffix(".png"))  # another format is another file
    source = Cars().open(two)
    assert len(source) == 5
    assert source.paths[1] == "cars_train/00002.jpg"
    assert not source.file(1).exists()


# --- one folder ---------------------------------------------------------------------------------------


def test_one_folder(one: Path) -> None:
    assert Cars().recognizes(one)
    source = Cars().open(one)
    assert source.kind == "cars"
    assert source.classes == tuple(CLASSES)
    assert facts(source) == (
        ["car_ims/000001.jpg", "car_ims/000002.jpg", "car_ims/000003.jpg"],
        [0, 0, 2],
        ["train", "test", "train"],
        [[111, 6, 742, 711], [47, 23, 394, 179], [199, 3, 56, 252]],
    )
    assert all(source.file(i).is_file() for i in range(3))


def test_one_folder_with_the_other_devkit(one: Path) -> None:
    (one / "devkit").mkdir()
    (one / "cars_annos.mat").rename(one / "devkit/cars_annos.mat")
    savemat(one / "devkit/cars_meta.mat", {"class_names": cell(["other"])})
    (one / "cars_train").mkdir()
    assert Cars().open(one).classes == tuple(CLASSES)


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cars_meta.mat", "cars_train_annos.mat"])
def test_a_missing_file_is_named(two: Path, name: str) -> None:
    (two / "devkit" / name).unlink()
    assert f"is Stanford Cars but devkit/{name} is missing; copy the dataset again" in error(two)


def test_missing_test_labels_are_named(two: Path) -> None:
    (two / "devkit/cars_test_annos_withlabels.mat").unlink()
    message = error(two)
    assert "is Stanford Cars but cars_test_annos_withlabels.mat is missing" in message
    assert "cars_test_annos.mat has no labels, so without it there are no test labels" in message
    (two / "devkit/cars_test_annos.mat").unlink()
    assert "is Stanford Cars but devkit/cars_test_annos_withlabels.mat is missing" in error(two)


@pytest.mark.parametrize("name", ["cars_train", "cars_test"])
def test_a_missing_image_folder_is_named(two: Path, name: str) -> None:
    shutil.rmtree(two / name)
    assert f"is Stanford Cars but {name}/ is missing" in error(two)


def test_images_alone_are_called_a_partial_copy(two: Path) -> None:
    shutil.rmtree(two / "devkit")
    assert "is Stanford Cars but devkit/cars_meta.mat is missing" in error(two)


def test_annotations_alone_are_called_a_partial_copy(two: Path) -> None:
    shutil.rmtree(two / "cars_train")
    shutil.rmtree(two / "cars_test")
    assert "is Stanford Cars but cars_train/ is missing" in error(two)


def test_one_folder_without_its_annotations(one: Path, two: Path) -> None:
    shutil.rmtree(two / "cars_train")
    (one / "cars_annos.mat").unlink()
    assert "is Stanford Cars but cars_annos.mat is missing" in error(one)


def test_what_is_no_copy(tmp_path: Path, two: Path) -> None:
    assert not Cars().recognizes(tmp_path)
    (tmp_path / "car_ims").mkdir()
    assert not Cars().recognizes(tmp_path)
    (two / "cars_train").rename(two / "train")  # sorted into classes by somebody, the annotations left beside
    (two / "cars_test").rename(two / "test")
    assert not Cars().recognizes(two)


@pytest.mark.parametrize("content", [b"", b"x", b"MATLAB 5.0 MAT-file", b"\0" * 200, b"<html>not found</html>" * 20])
def test_files_that_are_no_matlab_files(two: Path, content: bytes) -> None:
    (two / "devkit/cars_train_annos.mat").write_bytes(content)
    assert "cars_train_annos.mat is damaged (" in error(two)


@pytest.mark.parametrize("name", ["cars_meta.mat", "cars_train_annos.mat", "cars_test_annos_withlabels.mat"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_files_cut_short(two: Path, name: str, part: float) -> None:
    file = two / "devkit" / name
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    assert f"{name} is damaged (" in error(two)


def test_files_with_flipped_bytes(two: Path) -> None:
    """Whatever the parser makes of them: images or a named error, never a trace."""
    file = two / "devkit/cars_train_annos.mat"
    data = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(100):
        broken = bytearray(data)
        broken[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        file.write_bytes(broken)
        try:
            Cars().open(two)
        except FineSightError as caught:
            assert "cars_train_annos.mat is damaged (" in str(caught)  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"other": 1}, "no annotations"),
        ({"annotations": np.arange(3)}, "no bbox_x1 in the annotations"),
        ({"annotations": struct([(1, 2, 3, 4, "a.jpg")], (*CORNERS, "fname"))}, "no class in the annotations"),
        ({"annotations": struct([(1, 2, 3, 4, 5)], (*CORNERS, "class"))}, "no fname in the annotations"),
        ({"annotations": struct([(*"1234", 1, 5)], (*CORNERS, "class", "fname"))}, "fname are not all names"),
        ({"annotations": struct([(1, 2, 3, "", 1, "a.jpg")], (*CORNERS, "class", "fname"))}, ""),
        ({"annotations": struct([(1, 2, 3, "x", 1, "a.jpg")], (*CORNERS, "class", "fname"))}, "could not convert"),
        ({"annotations": struct([(1, 2, 3, 4, 1, "")], (*CORNERS, "class", "fname"))}, "fname are not all names"),
        ({"annotations": struct([], (*CORNERS, "class", "fname"))}, ""),
    ],
)
def test_wrong_annotations_are_named(two: Path, content: dict[str, Any], expected: str) -> None:
    savemat(two / "devkit/cars_train_annos.mat", content)
    assert f"cars_train_annos.mat is damaged ({expected}" in error(two)


@pytest.mark.parametrize("label", [0, 4, 1.5, 200])
def test_labels_out_of_range_are_named(two: Path, label: float) -> None:
    annotations(two / "devkit/cars_train_annos.mat", [TRAIN[0], (1, 2, 3, 4, label, "00002.jpg")])
    assert f"cars_train_annos.mat is damaged (class {label:g} is not one of 1 to 3)" in error(two)


def test_without_scipy(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert "which SciPy reads; install it: pip install scipy" in error(two)


def test_a_file_nobody_may_read_is_not_called_damaged(two: Path, no_access: Callable[[Path], Any]) -> None:
    with no_access(two / "devkit/cars_meta.mat"), pytest.raises(PermissionError):
        Cars().open(two)


def test_the_layout_is_recognized(two: Path) -> None:
    found = open_source(two)
    assert found.kind == "cars"
    assert found.paths.tolist() == Cars().open(two).paths.tolist()
