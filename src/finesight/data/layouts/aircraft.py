"""FGVC-Aircraft 2013b in its official layout, at the level of variants: split, classes and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.listing import split_folders
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

BANNER = 20  # pixel rows at the bottom of every image that name the photographer
_VARIANTS = "variants.txt"
_BOXES = "images_box.txt"
_TRAINVAL = "images_variant_trainval.txt"
_TRAIN_AND_VAL = ("images_variant_train.txt", "images_variant_val.txt")
_TEST = "images_variant_test.txt"
_MARKS = (_VARIANTS, _BOXES, _TRAINVAL, *_TRAIN_AND_VAL, _TEST, "families.txt", "manufacturers.txt")
_AGAIN = "copy the dataset again"


def is_aircraft(root: Path) -> bool:
    """Two of the layout's marks are enough: a partial copy shall be called one, not a plain folder.

    Lists beside train and test folders are no such copy: those images were sorted into classes by someone.
    """
    data = _data(root)
    marks = sum((data / name).is_file() for name in _MARKS)
    return marks >= 2 and ((data / "images").is_dir() or not (split_folders(root) or split_folders(data)))


def open_aircraft(root: Path) -> ImageSource:
    """Images in the order of the lists, trainval then test; ``root`` is the ``data`` folder or the one that has it."""
    data = _data(root)
    variants, test_file = _require(data, _VARIANTS), _require(data, _TEST)
    train_files = _train_files(data)
    if not (data / "images").is_dir():
        raise _missing(data, "images/")
    classes = _class_names(variants)
    seen: dict[str, Path] = {}
    train = [row for file in train_files for row in _rows(file, classes, seen)]
    test = _rows(test_file, classes, seen)
    ids = [identity for identity, _ in (*train, *test)]
    boxes = data / _BOXES
    return ImageSource(
        data,
        "aircraft",
        np.array([f"images/{identity}.jpg" for identity in ids]),
        np.array([label for _, label in (*train, *test)], np.int64),
        tuple(classes),
        np.repeat(["train", "test"], [len(train), len(test)]),
        _boxes(boxes, ids) if boxes.is_file() else None,
        trim=BANNER,
    )


def _data(root: Path) -> Path:
    return root / "data" if any((root / "data" / name).is_file() for name in _MARKS) else root


def _missing(data: Path, name: str) -> FineSightError:
    return FineSightError(f"{data} is FGVC-Aircraft but {name} is missing; {_AGAIN}")


def _require(data: Path, name: str) -> Path:
    if not (data / name).is_file():
        raise _missing(data, name)
    return data / name


def _train_files(data: Path) -> list[Path]:
    """The joint list, or its halves where only those are there."""
    halves = [data / name for name in _TRAIN_AND_VAL]
    if not (data / _TRAINVAL).is_file() and all(half.is_file() for half in halves):
        return halves
    return [_require(data, _TRAINVAL)]


def _lines(file: Path) -> list[tuple[int, str]]:
    """Number and text of every line that is not blank."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FineSightError(f"{file} is damaged ({error}); {_AGAIN}") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FineSightError(f"{file} is empty; {_AGAIN}")
    return lines


def _wrong(file: Path, number: int, what: str) -> FineSightError:
    return FineSightError(f"line {number} of {file} {what}; {_AGAIN}")


def _class_names(file: Path) -> dict[str, int]:
    """The label of each variant; names may hold spaces and slashes."""
    classes: dict[str, int] = {}
    for number, name in _lines(file):
        if name in classes:
            raise _wrong(file, number, f"names {name!r} again")
        classes[name] = len(classes)
    return classes


def _rows(file: Path, classes: dict[str, int], seen: dict[str, Path]) -> list[tuple[str, int]]:
    """``id name`` lines -> id, label; ``seen`` says which list an image was already in."""
    rows = []
    for number, line in _lines(file):
        identity, _, name = line.partition(" ")
        if not _is_id(identity) or not name:
            raise _wrong(file, number, f"is not 'id name': {line[:80]!r}")
        if name.strip() not in classes:
            raise _wrong(file, number, f"names {name[:80]!r}, which is not in {_VARIANTS}")
        if identity in seen:
            raise _wrong(file, number, f"lists image {identity} again, which is in {seen[identity].name}")
        seen[identity] = file
        rows.append((identity, classes[name.strip()]))
    return rows


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _boxes(file: Path, ids: Sequence[str]) -> NDArray[np.float32]:
    """``id x1 y1 x2 y2`` lines (the first pixel is 1, both corners inside) -> (N, 4) x, y, width, height."""
    corners: dict[str, list[int]] = {}
    for number, line in _lines(file):
        identity, *numbers = line.split()
        if len(numbers) != 4 or not all(_is_id(value) for value in (identity, *numbers)):
            raise _wrong(file, number, f"is not 'id x1 y1 x2 y2': {line[:80]!r}")
        x1, y1, x2, y2 = map(int, numbers)
        if x1 > x2 or y1 > y2:
            raise _wrong(file, number, f"is no box: {line[:80]!r}")
        corners[identity] = [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]
    without = [identity for identity in ids if identity not in corners]
    if without:
        raise FineSightError(f"{file} has no box of {len(without):,} images, the first being {without[0]}; {_AGAIN}")
    return np.array([corners[identity] for identity in ids], np.float32)
