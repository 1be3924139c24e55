import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finesight.data.layouts.inat import Inat2019
from finesight.data.sources import open_source
from finesight.data.verification import describe_differences
from finesight.errors import FineSightError

CATEGORIES = [  # out of order, with ids that are no positions
    {"id": 400, "name": "Rosa canina", "supercategory": "Plants"},
    {"id": 7, "name": "Parus major", "supercategory": "Birds"},
    {"id": 31, "name": "Parus ater", "supercategory": "Birds"},
]
TRAIN = {15: ("Plants", 400, "d1"), 3: ("Birds", 7, "b b"), 9: ("Birds", 31, "a2")}
VAL = {21: ("Birds", 7, "v1"), 20: ("Plants", 400, "v0")}


def lists(images: dict[int, tuple[str, int, str]], categories: list[dict[str, Any]] = CATEGORIES) -> dict[str, Any]:
    """As the competition wrote them; annotations in an order of their own."""
    return {
        "info": {"year": 2019},
        "licenses": [],
        "images": [
            {"id": i, "file_name": f"train_val2019/{top}/{c}/{name}.jpg", "width": 8, "height": 8, "license": 3}
            for i, (top, c, name) in images.items()
        ],
        "categories": categories,
        "annotations": [{"id": i, "image_id": i, "category_id": images[i][1]} for i in sorted(images)],
    }


def write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path, picture: Callable[..., Path]) -> Path:
    for top, category, name in (*TRAIN.values(), *VAL.values()):
        picture(f"inat/train_val2019/{top}/{category}/{name}.jpg")
    picture("inat/train_val2019/Birds/7/unlisted.jpg")
    write(tmp_path / "inat/train2019.json", lists(TRAIN))
    write(tmp_path / "inat/val2019.json", lists(VAL))
    return tmp_path / "inat"


def change(file: Path, edit: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    write(file, content)


def labels(root: Path) -> list[int]:
    found = Inat2019().open(root).labels
    assert found is not None
    assert found.dtype == np.int64
    return found.tolist()


def test_the_official_layout(root: Path) -> None:
    assert Inat2019().recognizes(root)
    source = Inat2019().open(root)
    assert source.kind == "inat2019"
    assert source.paths.tolist() == [
        "train_val2019/Plants/400/d1.jpg",
        "train_val2019/Birds/7/b b.jpg",
        "train_val2019/Birds/31/a2.jpg",
        "train_val2019/Birds/7/v1.jpg",
        "train_val2019/Plants/400/v0.jpg",
    ]
    assert source.classes == ("Birds/Parus major", "Birds/Parus ater", "Plants/Rosa canina")
    assert labels(root) == [2, 0, 1, 0, 2]
    assert source.splits is not None
    assert source.splits.tolist() == ["train"] * 3 + ["test"] * 2
    assert source.boxes is None
    assert Inat2019().super_categories(source) == ("Birds", "Birds", "Plants")
    assert all(source.file(i).is_file() for i in range(5))
    assert "5 images, 3 classes, 3 train + 2 test" in source.describe()


@pytest.mark.parametrize("known", [{}, {"name": ""}, {"name": None, "supercategory": ""}])
def test_categories_without_names_are_told_by_their_folders(root: Path, known: dict[str, Any]) -> None:
    bare = [{"id": entry["id"], **known} for entry in CATEGORIES]
    write(root / "train2019.json", lists(TRAIN, bare))
    write(root / "val2019.json", lists(VAL, bare))
    source = Inat2019().open(root)
    assert source.classes == ("Birds/7", "Birds/31", "Plants/400")
    assert Inat2019().super_categories(source) == ("Birds", "Birds", "Plants")
    assert labels(root) == [2, 0, 1, 0, 2]


def test_a_nameless_category_without_images(root: Path) -> None:
    change(root / "train2019.json", lambda content: content["categories"].append({"id": 8}))
    assert Inat2019().open(root).classes == ("Birds/Parus major", "unknown/8", "Birds/Parus ater", "Plants/Rosa canina")
    assert labels(root) == [3, 0, 2, 0, 3]


def test_the_names_released_later(root: Path) -> None:
    write(root / "categories.json", [{"id": 7, "name": "Great tit", "kingdom": "Animalia"}, {"id": 999, "name": "x"}])
    assert Inat2019().open(root).classes == ("Birds/Great tit", "Birds/Parus ater", "Plants/Rosa canina")
    write(root / "categories.json", {"7": "Great tit"})
    with pytest.raises(FineSightError, match=r"categories\.json is not a list of id and name"):
        Inat2019().open(root)


def test_names_with_a_slash(root: Path) -> None:
    change(root / "train2019.json", lambda content: content["categories"][0].update(name="Rosa a/b"))
    change(root / "val2019.json", lambda content: content["categories"][0].update(name="Rosa a/b"))
    assert Inat2019().super_categories(Inat2019().open(root)) == ("Birds", "Birds", "Plants")


def test_an_image_without_annotation_has_no_label(root: Path) -> None:
    change(root / "val2019.json", lambda content: content["annotations"].pop())
    assert labels(root) == [2, 0, 1, -1, 2]
    assert "1 without a label" in Inat2019().open(root).describe()


def test_single_missing_images_are_left_to_the_reader(root: Path) -> None:
    file = root / "train_val2019/Birds/7/v1.jpg"
    file.rename(file.with_suffix(".png"))  # another format is another file
    source = Inat2019().open(root)
    assert len(source) == 5
    assert not source.file(3).exists()


def test_the_order_is_stable(root: Path) -> None:
    first, second = Inat2019().open(root), Inat2019().open(root)
    assert first.paths.tolist() == second.paths.tolist()
    assert first.classes == second.classes


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train2019.json", "val2019.json"])
def test_a_missing_list_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    assert Inat2019().recognizes(root)
    with pytest.raises(FineSightError, match=f"iNaturalist 2019 but {name} is missing; copy the dataset again"):
        Inat2019().open(root)


@pytest.mark.parametrize("gone", ["train_val2019", "train_val2019/Plants", "train_val2019/Birds/31"])
def test_a_missing_folder_is_named(root: Path, gone: str) -> None:
    shutil.rmtree(root / gone)
    assert Inat2019().recognizes(root)
    with pytest.raises(FineSightError, match=f"iNaturalist 2019 but {gone}/ is missing"):
        Inat2019().open(root)


def test_one_mark_is_not_enough(tmp_path: Path) -> None:
    assert not Inat2019().recognizes(tmp_path)
    (tmp_path / "train_val2019").mkdir()
    assert not Inat2019().recognizes(tmp_path)
    (tmp_path / "train2019.json").mkdir()  # a folder is no list
    assert not Inat2019().recognizes(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b'{"images": [', b"\xff\xfe\x00", b"[" * 100_000, b"null", b"[]", b"3"])
def test_damaged_json(root: Path, text: bytes) -> None:
    (root / "val2019.json").write_bytes(text)
    with pytest.raises(FineSightError, match=r"val2019\.json is damaged .*copy the dataset again"):
        Inat2019().open(root)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda c: c.pop("images"), "damaged .no 'images'"),
        (lambda c: c.pop("annotations"), "damaged .no 'annotations'"),
        (lambda c: c.pop("categories"), "damaged .no 'categories'"),
        (lambda c: c["images"][0].pop("file_name"), "damaged .no 'file_name'"),
        (lambda c: c["images"][0].update(id=[1]), "damaged"),
        (lambda c: c["images"][0].update(file_name=None), "damaged .file_name None"),
        (lambda c: c["images"].append("x"), "damaged"),
        (lambda c: c["annotations"][0].update(category_id="x"), "damaged"),
        (lambda c: c.update(images=[], annotations=[]), "lists no image"),
        (lambda c: c["images"].append(c["images"][0]), "lists or labels an image twice"),
        (lambda c: c["annotations"].append(c["annotations"][0]), "lists or labels an image twice"),
        (lambda c: c["annotations"][0].update(image_id=77), "labels image 77, which is not listed"),
        (lambda c: c["annotations"][0].update(category_id=5), "names category 5, which is not listed"),
    ],
)
def test_wrong_lists_are_named(root: Path, edit: Callable[[Any], object], expected: str) -> None:
    change(root / "train2019.json", edit)
    with pytest.raises(FineSightError, match=rf"train2019\.json (is )?{expected}"):
        Inat2019().open(root)


# --- the whole size -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_lists_of_the_official_size_take_seconds(tmp_path: Path) -> None:
    official = Inat2019.official
    train, test, classes = official.train, official.test, official.classes
    tops = ("Amphibians", "Birds", "Fungi", "Insects", "Plants", "Reptiles")
    bare = [{"id": c} for c in range(classes)]

    def some(first: int, count: int) -> dict[int, tuple[str, int, str]]:
        return {i: (tops[i % classes % 6], i % classes, f"{i:032x}") for i in range(first, first + count)}

    write(tmp_path / "train2019.json", lists(some(0, train), bare))
    write(tmp_path / "val2019.json", lists(some(train, test), bare))
    for c in range(classes):
        (tmp_path / "train_val2019" / tops[c % 6] / str(c)).mkdir(parents=True)
    start = time.process_time()
    source = Inat2019().open(tmp_path)
    assert time.process_time() - start < 10
    assert describe_differences(source) is None
    assert source.classes[1] == "Birds/1"


def test_the_layout_is_recognized(root: Path) -> None:
    found = open_source(root)
    assert found.kind == "inat2019"
    assert found.paths.tolist() == Inat2019().open(root).paths.tolist()
