"""iNaturalist 2019 as the competition gave it out: COCO-style lists, one folder per super-category and species."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.layouts.layout import (
    COPY_AGAIN,
    DatasetLayout,
    DirectoryTree,
    OfficialCounts,
    damaged,
    register_layout,
)
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

_FOLDER = "train_val2019"
_LISTS = {"train": "train2019.json", "test": "val2019.json"}  # the labels of the true test images were never given
_NAMES = "categories.json"  # came later: the list to put in place of the obfuscated one
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Lists:
    """One of the two json files; ``categories`` of images without annotation are ``None``."""

    files: list[str]
    categories: list[int | None]
    entries: dict[int, dict[str, Any]]  # by category id


@register_layout
class Inat2019(DatasetLayout):
    name = "inat2019"
    title = "iNaturalist 2019"
    download = "train_val2019.tar.gz and the train and validation annotations, unpacked"
    homepage = "https://github.com/visipedia/inat_comp/tree/master/2019"
    trees = (
        DirectoryTree(
            "inat2019",
            (
                ("train_val2019/", "Birds/202/….jpg: super-category, class, image"),
                ("train2019.json", "images, annotations and categories of the train split"),
                ("val2019.json", "those of the validation split"),
            ),
            (("categories.json", "the names of the species, given out after the competition"),),
        ),
    )
    annotations = "super-categories in the class names"
    note = "The labels of the test images were never given out: the validation split is the test split here."
    official = OfficialCounts(265213, 3030, 1010, smallest_test=3)  # the validation split is even
    order = 40

    def recognizes(self, root: Path) -> bool:
        """Return True for two of the dataset's three parts, so that a partial copy is not taken for a plain folder."""
        return (root / _FOLDER).is_dir() + sum((root / name).is_file() for name in _LISTS.values()) >= 2

    def open(self, root: Path) -> ImageSource:
        """Return the images of ``train2019.json``, then of ``val2019.json``; classes in the order of their ids."""
        for name in _LISTS.values():
            if not (root / name).is_file():
                raise self.missing_error(root, name)
        lists = {split: _read(root / name) for split, name in _LISTS.items()}
        files = [file for part in lists.values() for file in part.files]
        self.require_folders(root, files)
        categories = [category for part in lists.values() for category in part.categories]
        entries = {identity: entry for part in lists.values() for identity, entry in part.entries.items()}
        if (root / _NAMES).is_file():
            entries = _with_names(entries, root / _NAMES)
        order = sorted(entries)
        index: dict[int | None, int] = {identity: i for i, identity in enumerate(order)}
        return ImageSource(
            root,
            self.name,
            np.array(files),
            np.array([index.get(category, -1) for category in categories], np.int64),
            _class_names(order, entries, _super_categories(files, categories)),
            np.repeat(list(lists), [len(part.files) for part in lists.values()]),
        )

    def super_categories(self, source: ImageSource) -> tuple[str, ...]:
        """Return the super-category (Plants, Birds, ...) of each class: the first part of its name."""
        return tuple(name.split("/", 1)[0] for name in source.classes)


def _read(file: Path) -> _Lists:
    data = _json(file)
    try:
        images = {image["id"]: image["file_name"] for image in data["images"]}
        entries = {int(entry["id"]): dict(entry) for entry in data["categories"]}
        category_of = {entry["image_id"]: int(entry["category_id"]) for entry in data["annotations"]}
        given = len(data["images"]), len(data["annotations"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise damaged(file, what) from error
    if not images:
        raise FineSightError(f"{file} lists no image; {COPY_AGAIN}")
    if nameless := [name for name in images.values() if not isinstance(name, str) or not name]:
        raise damaged(file, f"file_name {nameless[0]!r}")
    if given != (len(images), len(category_of)):
        raise FineSightError(f"{file} lists or labels an image twice; {COPY_AGAIN}")
    if unlisted := category_of.keys() - images.keys():
        raise FineSightError(f"{file} labels image {min(unlisted, key=str)}, which is not listed; {COPY_AGAIN}")
    if unknown := set(category_of.values()) - entries.keys():
        raise FineSightError(f"{file} names category {min(unknown)}, which is not listed; {COPY_AGAIN}")
    return _Lists(list(images.values()), [category_of.get(identity) for identity in images], entries)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(file, error) from error


def _with_names(entries: dict[int, dict[str, Any]], file: Path) -> dict[int, dict[str, Any]]:
    """Take the names of the later list for the same ids; the super-categories stay those of the folders."""
    data = _json(file)
    try:
        names = {int(entry["id"]): entry["name"] for entry in data}
    except (KeyError, TypeError, ValueError) as error:
        raise FineSightError(f"{file} is not a list of id and name; copy it again or remove it") from error
    return {i: {**entry, "name": names.get(i, entry.get("name"))} for i, entry in entries.items()}


def _super_categories(files: list[str], categories: list[int | None]) -> dict[int, str]:
    """Read super-categories from paths: ``train_val2019/Plants/400/x.jpg`` says that 400 is a plant."""
    found: dict[int, str] = {}
    for file, category in zip(files, categories, strict=True):
        if category is not None and category not in found:
            parts = file.split("/")
            found[category] = parts[-3] if len(parts) >= 4 else _UNKNOWN
    return found


def _class_names(order: list[int], entries: dict[int, dict[str, Any]], by_path: dict[int, str]) -> tuple[str, ...]:
    names = []
    for identity in order:
        entry = entries[identity]
        top = entry.get("supercategory") or by_path.get(identity, _UNKNOWN)
        names.append(f"{top}/{entry.get('name') or identity}")
    return tuple(names)
