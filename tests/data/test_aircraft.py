"""FGVC-Aircraft: what is special about its lists, and the banner at the bottom of every image."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.layouts.aircraft import BANNER
from finesight.data.quality import check_source
from finesight.data.sources import open_source
from layouts import aircraft, facts, open_error


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return aircraft(tmp_path).root / "data"


def test_the_inner_folder_is_the_same_source(data: Path) -> None:
    inner, outer = open_source(data), open_source(data.parent)
    assert facts(inner) == facts(outer)
    assert inner.root == outer.root
    assert inner.split("test").trim == outer.trim == BANNER == 20


def test_train_and_val_without_their_union(data: Path) -> None:
    rows = (data / "images_variant_trainval.txt").read_text().splitlines(keepends=True)
    whole = open_source(data)
    (data / "images_variant_train.txt").write_text("".join(rows[1:]))
    (data / "images_variant_val.txt").write_text(rows[0])
    assert facts(open_source(data)) == facts(whole)
    (data / "images_variant_trainval.txt").unlink()
    assert facts(open_source(data)) == facts(whole.select([1, 2, 0, 3, 4]))  # train, then val
    (data / "images_variant_val.txt").unlink()
    assert "is FGVC-Aircraft 2013b but images_variant_trainval.txt is missing" in open_error(data)


def test_without_boxes(data: Path) -> None:
    (data / "images_box.txt").unlink()
    assert open_source(data).boxes is None


def test_windows_line_ends_and_blank_lines(data: Path) -> None:
    expected = facts(open_source(data))
    for file in data.glob("*.txt"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert facts(open_source(data)) == expected


# --- the banner ---------------------------------------------------------------------------------------


def test_no_row_of_the_banner_is_seen(data: Path, tmp_path: Path) -> None:
    source = open_source(data)
    cache = open_cache(source, 25, cache_dir=tmp_path / "cache", progress=False)
    assert len(cache) == 5
    for i in range(5):
        whole = Image.open(source.file(i))
        np.testing.assert_array_equal(cache.image(i), np.asarray(whole)[:25])  # not resized
        assert cache.geometry(i).original == (60, 25)
    assert cache.box(1) is not None
    np.testing.assert_allclose(cache.box(1), [2, 3, 38, 22])  # ends where the banner begins
    np.testing.assert_allclose(cache.box(3), [9, 1, 50, 19])


def test_the_check_does_not_compare_banners(data: Path) -> None:
    """Two pictures that differ, and a copy with another banner."""
    copy = Image.open(data / "images/0056978.jpg")
    copy.paste((0, 0, 0), (0, 25, 60, 45))
    copy.save(data / "images/0450014.jpg", quality=95)
    report = check_source(open_source(data), progress=False)
    assert [[image.path for image in group.images] for group in report.duplicates] == [
        ["images/0056978.jpg", "images/0450014.jpg"]
    ]
    assert report.leaked == 1
    assert {(image.width, image.height) for image in report.tiny} == {(60, 25)}


def test_an_image_of_nothing_but_banner_is_unreadable(data: Path) -> None:
    Image.new("RGB", (60, 20)).save(data / "images/0034309.jpg")
    unreadable = check_source(open_source(data), progress=False).unreadable
    assert [image.path for image in unreadable] == ["images/0034309.jpg"]


# --- partial and damaged copies -----------------------------------------------------------------------


def test_images_sorted_into_classes_are_no_copy(data: Path) -> None:
    """Somebody sorted them and left the lists beside."""
    for split in ("train", "test"):
        (data / split / "MD-80").mkdir(parents=True)
        shutil.copy(data / "images/0698580.jpg", data / split / "MD-80")
    shutil.rmtree(data / "images")
    assert open_source(data).kind == "splits"


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
    message = open_error(data)
    assert f"line {number} of {file} {expected}" in message
    assert message.endswith("; copy the dataset again")


@pytest.mark.parametrize("name", ["variants.txt", "images_variant_trainval.txt", "images_box.txt"])
def test_empty_and_binary_files(data: Path, name: str) -> None:
    (data / name).write_bytes(b"\n \n")
    assert f"{name} is empty; copy the dataset again" in open_error(data)
    (data / name).write_bytes(b"\xff\xfe\0")
    assert f"{name} is damaged ('utf-8' codec" in open_error(data)


def test_images_without_a_box_are_named(data: Path) -> None:
    (data / "images_box.txt").write_text("0056978 1 1 1 1\n")
    assert "images_box.txt has no box of 4 images, the first being 1025794" in open_error(data)
