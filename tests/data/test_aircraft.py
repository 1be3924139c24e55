import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.layouts.aircraft import BANNER, Aircraft
from finesight.data.layouts.layout import official_counts
from finesight.data.quality import check_source
from finesight.data.sources import ImageSource, open_source
from finesight.data.verification import describe_differences
from finesight.errors import FineSightError

VARIANTS = ["707-320", "F/A-18", "Cessna 172", "MD-80"]
TRAIN = [("1025794", "F/A-18"), ("0034309", "Cessna 172")]
VAL = [("0056978", "707-320")]
TEST = [("0698580", "MD-80"), ("0450014", "Cessna 172")]
BOXES = {"1025794": (3, 4, 40, 30), "0034309": (1, 1, 60, 45), "0056978": (1, 1, 1, 1)}
BOXES |= {"0698580": (10, 2, 59, 20), "0450014": (2, 3, 4, 5)}
WIDTH, HEIGHT = 60, 45  # of the images, the banner included


def lines(rows: list[tuple[Any, ...]]) -> str:
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As the archive unpacks it."""
    folder = tmp_path / "fgvc-aircraft-2013b" / "data"
    (folder / "images").mkdir(parents=True)
    for number, (identity, _) in enumerate(TRAIN + VAL + TEST):
        coarse = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        picture.paste((255, 255, 255), (0, HEIGHT - BANNER, WIDTH, HEIGHT))
        picture.save(folder / "images" / f"{identity}.jpg", quality=95)
    (folder / "variants.txt").write_text("\n".join(VARIANTS) + "\n")
    (folder / "families.txt").write_text("Boeing 707\nF/A-18\nCessna 172\nMD-80\n")
    (folder / "manufacturers.txt").write_text("Boeing\nMcDonnell Douglas\nCessna\n")
    for name, rows in (("train", TRAIN), ("val", VAL), ("trainval", VAL + TRAIN), ("test", TEST)):
        (folder / f"images_variant_{name}.txt").write_text(lines(rows))
    (folder / "images_box.txt").write_text(lines([(identity, *box) for identity, box in BOXES.items()]))
    (folder.parent / "README.md").write_text("# FGVC-Aircraft")
    return folder


def facts(source: ImageSource) -> tuple[list[str], list[int], list[str], list[list[float]] | None]:
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.splits is not None
    boxes = None if source.boxes is None else source.boxes.tolist()
    return source.paths.tolist(), source.labels.tolist(), source.splits.tolist(), boxes


def error(root: Path) -> str:
    assert Aircraft().recognizes(root)
    with pytest.raises(FineSightError) as caught:
        Aircraft().open(root)
    return str(caught.value)


# --- the layout ---------------------------------------------------------------------------------------


def test_the_official_layout(data: Path) -> None:
    assert Aircraft().recognizes(data)
    source = Aircraft().open(data)
    assert source.kind == "aircraft"
    assert official_counts(source.kind)
    assert source.classes == tuple(VARIANTS)
    assert facts(source) == (
        [f"images/{i}.jpg" for i in ("0056978", "1025794", "0034309", "0698580", "0450014")],
        [0, 1, 2, 3, 2],
        ["train"] * 3 + ["test"] * 2,
        [[0, 0, 1, 1], [2, 3, 38, 27], [0, 0, 60, 45], [9, 1, 50, 19], [1, 2, 3, 3]],
    )
    assert source.trim == BANNER == 20
    assert source.split("test").trim == 20
    assert all(source.file(i).is_file() for i in range(5))
    assert "5 images, 4 classes, 3 train + 2 test, boxes" in source.describe()
    words = describe_differences(source)
    assert words is not None
    assert "6,664 of 6,667 train images missing" in words


def test_the_folder_above_is_the_same_source(data: Path) -> None:
    assert Aircraft().recognizes(data.parent)
    above, inside = Aircraft().open(data.parent), Aircraft().open(data)
    assert facts(above) == facts(inside)
    assert above.root == inside.root == data
    assert not Aircraft().recognizes(data.parent.parent)


def test_train_and_val_without_their_union(data: Path) -> None:
    expected = facts(Aircraft().open(data))
    (data / "images_variant_trainval.txt").unlink()
    paths, labels, splits, boxes = facts(Aircraft().open(data))
    order = [1, 2, 0, 3, 4]  # train, then val
    assert paths == [expected[0][i] for i in order]
    assert labels == [expected[1][i] for i in order]
    assert splits == expected[2]
    assert boxes is not None
    assert expected[3] is not None
    assert boxes == [expected[3][i] for i in order]


def test_without_boxes(data: Path) -> None:
    (data / "images_box.txt").unlink()
    assert Aircraft().recognizes(data)
    assert Aircraft().open(data).boxes is None


def test_windows_line_ends_and_blank_lines(data: Path) -> None:
    expected = facts(Aircraft().open(data))
    for file in data.glob("*.txt"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert facts(Aircraft().open(data)) == expected
    assert Aircraft().open(data).classes == tuple(VARIANTS)


def test_single_missing_images_are_left_to_the_reader(data: Path) -> None:
    (data / "images/0034309.jpg").unlink()
    assert len(Aircraft().open(data)) == 5


# --- the banner ---------------------------------------------------------------------------------------


def test_no_row_of_the_banner_is_seen(data: Path, tmp_path: Path) -> None:
    source = Aircraft().open(data)
    cache = open_cache(source, 25, cache_dir=tmp_path / "cache", progress=False)
    assert len(cache) == 5
    for i in range(5):
        whole = Image.open(source.file(i))
        np.testing.assert_array_equal(cache.image(i), np.asarray(whole)[: HEIGHT - BANNER])  # 25 rows: not resized
        assert cache.geometry(i).original == (WIDTH, HEIGHT - BANNER)
    assert cache.box(1) is not None
    np.testing.assert_allclose(cache.box(1), [2, 3, 38, 22])  # ends where the banner begins
    np.testing.assert_allclose(cache.box(3), [9, 1, 50, 19])


def test_the_check_does_not_compare_banners(data: Path) -> None:
    """Two pictures that differ, and a copy with another banner."""
    copy = Image.open(data / "images/0056978.jpg")
    copy.paste((0, 0, 0), (0, HEIGHT - BANNER, WIDTH, HEIGHT))
    copy.save(data / "images/0450014.jpg", quality=95)
    report = check_source(Aircraft().open(data), progress=False)
    assert [[image.path for image in group.images] for group in report.duplicates] == [
        ["images/0056978.jpg", "images/0450014.jpg"]
    ]
    assert report.leaked == 1
    assert {(image.width, image.height) for image in report.tiny} == {(WIDTH, HEIGHT - BANNER)}


def test_an_image_of_nothing_but_banner_is_skipped(data: Path, tmp_path: Path) -> None:
    Image.new("RGB", (60, 20)).save(data / "images/0034309.jpg")
    source = Aircraft().open(data)
    cache = open_cache(source, 25, cache_dir=tmp_path / "cache", progress=False)
    assert cache.skipped == [("images/0034309.jpg", "only 20 pixels high, and the bottom 20 are cut off")]
    assert [image.path for image in check_source(source, progress=False).unreadable] == ["images/0034309.jpg"]


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["variants.txt", "images_variant_test.txt"])
def test_a_missing_file_is_named(data: Path, name: str) -> None:
    (data / name).unlink()
    assert f"{data} is FGVC-Aircraft 2013b but {name} is missing; copy the dataset again" in error(data.parent)


@pytest.mark.parametrize("half", ["train", "val"])
def test_half_of_the_train_list_is_not_enough(data: Path, half: str) -> None:
    (data / "images_variant_trainval.txt").unlink()
    (data / f"images_variant_{half}.txt").unlink()
    assert "is FGVC-Aircraft 2013b but images_variant_trainval.txt is missing" in error(data)


def test_missing_images_are_named(data: Path) -> None:
    """The annotations are given out alone, too."""
    shutil.rmtree(data / "images")
    assert "is FGVC-Aircraft 2013b but images/ is missing" in error(data)


def test_what_is_no_copy(tmp_path: Path, data: Path) -> None:
    other = tmp_path / "other"
    (other / "images").mkdir(parents=True)
    assert not Aircraft().recognizes(other)
    (other / "families.txt").write_text("roses\n")
    assert not Aircraft().recognizes(other)
    shutil.rmtree(data / "images")
    for split in ("train", "test"):  # sorted into classes by somebody, the lists left beside
        (data / split / "MD-80").mkdir(parents=True)
    assert not Aircraft().recognizes(data)


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("images_variant_test.txt", "0698580", "is not 'id name': '0698580'"),
        ("images_variant_test.txt", "MD-80 0698580", "is not 'id name': 'MD-80 0698580'"),
        ("images_variant_test.txt", "../x MD-80", "is not 'id name': '../x MD-80'"),
        ("images_variant_test.txt", "٣ MD-80", "is not 'id name': '٣ MD-80'"),
        ("images_variant_test.txt", "0000001 F-16", "names 'F-16', which is not in variants.txt"),
        ("images_variant_test.txt", "1025794 F/A-18", "lists image 1025794 again, which is in images_variant_trainval"),
        ("images_variant_test.txt", "0698580 MD-80", "lists image 0698580 again, which is in images_variant_test.txt"),
        ("variants.txt", "F/A-18", "names 'F/A-18' again"),
        ("images_box.txt", "0698580 1 2 3", "is not 'id x1 y1 x2 y2': '0698580 1 2 3'"),
        ("images_box.txt", "0698580 1 2 3 4 5", "is not 'id x1 y1 x2 y2'"),
        ("images_box.txt", "0698580 1 2 3 x", "is not 'id x1 y1 x2 y2'"),
        ("images_box.txt", "0698580 1 2 3 -4", "is not 'id x1 y1 x2 y2'"),
        ("images_box.txt", "0698580 9 2 8 4", "is no box: '0698580 9 2 8 4'"),
        ("images_box.txt", "0698580 1 5 8 4", "is no box"),
    ],
)
def test_wrong_lines_are_named(data: Path, name: str, line: str, expected: str) -> None:
    file = data / name
    number = len(file.read_text().splitlines()) + 1
    with file.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    message = error(data)
    assert f"line {number} of {file} {expected}" in message
    assert message.endswith("; copy the dataset again")


@pytest.mark.parametrize("name", ["variants.txt", "images_variant_trainval.txt", "images_box.txt"])
def test_empty_and_binary_files(data: Path, name: str) -> None:
    (data / name).write_bytes(b"\n \n")
    assert f"{name} is empty; copy the dataset again" in error(data)
    (data / name).write_bytes(b"\xff\xfe\0")
    assert f"{name} is damaged ('utf-8' codec" in error(data)


def test_images_without_a_box_are_named(data: Path) -> None:
    (data / "images_box.txt").write_text("0056978 1 1 1 1\n")
    assert "images_box.txt has no box of 4 images, the first being 1025794" in error(data)


def test_a_file_nobody_may_read_is_not_called_damaged(data: Path, no_access: Callable[[Path], Any]) -> None:
    with no_access(data / "variants.txt"), pytest.raises(PermissionError):
        Aircraft().open(data)


@pytest.mark.parametrize("above", [True, False])
def test_the_layout_is_recognized(data: Path, above: bool) -> None:
    found = open_source(data.parent if above else data)
    assert (found.kind, found.trim) == ("aircraft", BANNER)
    assert facts(found) == facts(Aircraft().open(data))
