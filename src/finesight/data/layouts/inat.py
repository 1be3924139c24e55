"""iNaturalist 2019 as the competition gave it out: COCO-style lists, one folder per super-category and species."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

_FOLDER = "train_val2019"
_LISTS = {"train": "train2019.json", "test": "val2019.json"}  # the labels of the true test images were never given
_NAMES = "categories.json"  # came later: the list to put in place of the obfuscated one
_UNKNOWN = "unknown"
_AGAIN = "copy the dataset again"


@dataclass(frozen=True)
class _Lists:
    """One of the two json files; ``categories`` of images without annotation are ``None``."""

    files: list[str]
    categories: list[int | None]
    described: dict[int, dict[str, Any]]  # by category id


def is_inat(root: Path) -> bool:
    """Two of the layout's three marks are enough: a partial copy shall be called one, not a plain folder."""
    return (root / _FOLDER).is_dir() + sum((root / name).is_file() for name in _LISTS.values()) >= 2


def open_inat(root: Path) -> ImageSource:
    """Images in the order of ``train2019.json``, then of ``val2019.json``; classes in the order of their ids."""
    for name in _LISTS.values():
        if not (root / name).is_file():
            raise FineSightError(f"{root} is iNaturalist 2019 but {name} is missing; {_AGAIN}")
    lists = {split: _read(root / name) for split, name in _LISTS.items()}
    files = [file for part in lists.values() for file in part.files]
    _require_folders(root, files)
    categories = [category for part in lists.values() for category in part.categories]
    described = {identity: entry for part in lists.values() for identity, entry in part.described.items()}
    if (root / _NAMES).is_file():
        described = _renamed(described, root / _NAMES)
    order = sorted(described)
    index: dict[int | None, int] = {identity: i for i, identity in enumerate(order)}
    return ImageSource(
        root,
        "inat2019",
        np.array(files),
        np.array([index.get(category, -1) for category in categories], np.int64),
        _class_names(order, described, _supers_by_path(files, categories)),
        np.repeat(list(lists), [len(part.files) for part in lists.values()]),
    )


def super_categories(source: ImageSource) -> tuple[str, ...]:
    """The super-category (Plants, Birds, ...) of every class, in the order of ``source.classes``."""
    if source.kind != "inat2019":
        raise FineSightError(f"{source.root} is not iNaturalist 2019: its classes have no super-categories.")
    return tuple(name.split("/", 1)[0] for name in source.classes)


def _read(file: Path) -> _Lists:
    data = _json(file)
    try:
        images = {image["id"]: image["file_name"] for image in data["images"]}
        described = {int(entry["id"]): dict(entry) for entry in data["categories"]}
        category_of = {entry["image_id"]: int(entry["category_id"]) for entry in data["annotations"]}
        given = len(data["images"]), len(data["annotations"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FineSightError(f"{file} is damaged ({what}); {_AGAIN}") from error
    if not images:
        raise FineSightError(f"{file} lists no image; {_AGAIN}")
    if nameless := [name for name in images.values() if not isinstance(name, str) or not name]:
        raise FineSightError(f"{file} is damaged (file_name {nameless[0]!r}); {_AGAIN}")
    if given != (len(images), len(category_of)):
        raise FineSightError(f"{file} lists or labels an image twice; {_AGAIN}")
    if unlisted := category_of.keys() - images.keys():
        raise FineSightError(f"{file} labels image {min(unlisted, key=str)}, which is not listed; {_AGAIN}")
    if unknown := set(category_of.values()) - described.keys():
        raise FineSightError(f"{file} names category {min(unknown)}, which is not listed; {_AGAIN}")
    return _Lists(list(images.values()), [category_of.get(identity) for identity in images], described)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FineSightError(f"{file} is damaged ({error}); {_AGAIN}") from error


def _renamed(described: dict[int, dict[str, Any]], file: Path) -> dict[int, dict[str, Any]]:
    """The names of the later list for the same ids; the super-categories stay those of the folders."""
    data = _json(file)
    try:
        names = {int(entry["id"]): entry["name"] for entry in data}
    except (KeyError, TypeError, ValueError) as error:
        raise FineSightError(f"{file} is not a list of id and name; copy it again or remove it") from error
    return {i: {**entry, "name": names.get(i, entry.get("name"))} for i, entry in described.items()}


def _supers_by_path(files: list[str], categories: list[int | None]) -> dict[int, str]:
    """``train_val2019/Plants/400/x.jpg`` says that 400 is a plant."""
    supers: dict[int, str] = {}
    for file, category in zip(files, categories, strict=True):
        if category is not None and category not in supers:
            parts = file.split("/")
            supers[category] = parts[-3] if len(parts) >= 4 else _UNKNOWN
    return supers


def _class_names(order: list[int], described: dict[int, dict[str, Any]], by_path: dict[int, str]) -> tuple[str, ...]:
    names = []
    for identity in order:
        entry = described[identity]
        top = entry.get("supercategory") or by_path.get(identity, _UNKNOWN)
        names.append(f"{top}/{entry.get('name') or identity}")
    return tuple(names)


def _require_folders(root: Path, files: list[str]) -> None:
    """One look per class folder, not per image: single missing images are skipped later, one by one."""
    for folder in dict.fromkeys(file.rpartition("/")[0] for file in files):
        if not (root / folder).is_dir():
            gone = next(p for p in reversed([folder, *map(str, Path(folder).parents)]) if not (root / p).is_dir())
            raise FineSightError(f"{root} is iNaturalist 2019 but {gone}/ is missing; {_AGAIN}")
