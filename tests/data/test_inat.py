"""iNaturalist 2019: names of classes, super-categories, and wrong lists."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finesight.data.layouts.inat import Inat2019
from finesight.data.sources import open_source
from finesight.data.verification import describe_differences
from finesight.errors import FineSightError
from layouts import CATEGORIES, INAT_TRAIN, INAT_VAL, inat2019, inat_list, open_error


def write(file: Path, content: object) -> None:
    file.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return inat2019(tmp_path).root


def labels(root: Path) -> list[int]:
    found = open_source(root).labels
    assert found is not None
    return found.tolist()


def change(file: Path, edit: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    write(file, content)


@pytest.mark.parametrize("known", [{}, {"name": ""}, {"name": None, "supercategory": ""}])
def test_categories_without_names_are_told_by_their_folders(root: Path, known: dict[str, Any]) -> None:
    bare = [{"id": entry["id"], **known} for entry in CATEGORIES]
    write(root / "train2019.json", inat_list(INAT_TRAIN, bare))
    write(root / "val2019.json", inat_list(INAT_VAL, bare))
    source = open_source(root)
    assert source.classes == ("Birds/7", "Birds/31", "Plants/400")
    assert Inat2019().super_categories(source) == ("Birds", "Birds", "Plants")
    assert labels(root) == [2, 0, 1, 0, 2]


def test_a_nameless_category_without_images(root: Path) -> None:
    change(root / "train2019.json", lambda content: content["categories"].append({"id": 8}))
    assert open_source(root).classes == ("Birds/Parus major", "unknown/8", "Birds/Parus ater", "Plants/Rosa canina")
    assert labels(root) == [3, 0, 2, 0, 3]


def test_the_names_released_later(root: Path) -> None:
    write(root / "categories.json", [{"id": 7, "name": "Great tit", "kingdom": "Animalia"}, {"id": 999, "name": "x"}])
    assert open_source(root).classes == ("Birds/Great tit", "Birds/Parus ater", "Plants/Rosa canina")
    write(root / "categories.json", {"7": "Great tit"})
    assert "categories.json is not a list of id and name" in open_error(root)


def test_names_with_a_slash(root: Path) -> None:
    change(root / "train2019.json", lambda content: content["categories"][0].update(name="Rosa a/b"))
    change(root / "val2019.json", lambda content: content["categories"][0].update(name="Rosa a/b"))
    assert Inat2019().super_categories(open_source(root)) == ("Birds", "Birds", "Plants")


def test_an_image_without_annotation_has_no_label(root: Path) -> None:
    change(root / "val2019.json", lambda content: content["annotations"].pop())
    assert labels(root) == [2, 0, 1, -1, 2]
    assert "1 without a label" in open_source(root).describe()


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["train_val2019", "train_val2019/Plants", "train_val2019/Birds/31"])
def test_a_missing_folder_is_named(root: Path, gone: str) -> None:
    shutil.rmtree(root / gone)
    assert f"iNaturalist 2019 but {gone}/ is missing" in open_error(root)


@pytest.mark.parametrize("text", [b"", b"{", b'{"images": [', b"\xff\xfe\x00", b"[" * 100_000, b"null", b"[]", b"3"])
def test_damaged_json(root: Path, text: bytes) -> None:
    (root / "val2019.json").write_bytes(text)
    with pytest.raises(FineSightError, match=r"val2019\.json is damaged .*copy the dataset again"):
        open_source(root)


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
        open_source(root)


# --- the whole size -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_lists_of_the_official_size_take_seconds(tmp_path: Path) -> None:
    official = Inat2019.official
    train, test, classes = official.train, official.test, official.classes
    tops = ("Amphibians", "Birds", "Fungi", "Insects", "Plants", "Reptiles")
    bare = [{"id": c} for c in range(classes)]

    def some(first: int, count: int) -> dict[int, tuple[str, int, str]]:
        return {i: (tops[i % classes % 6], i % classes, f"{i:032x}") for i in range(first, first + count)}

    write(tmp_path / "train2019.json", inat_list(some(0, train), bare))
    write(tmp_path / "val2019.json", inat_list(some(train, test), bare))
    for c in range(classes):
        (tmp_path / "train_val2019" / tops[c % 6] / str(c)).mkdir(parents=True)
    start = time.process_time()
    source = open_source(tmp_path)
    assert time.process_time() - start < 10
    assert describe_differences(source) is None
    assert source.classes[1] == "Birds/1"
