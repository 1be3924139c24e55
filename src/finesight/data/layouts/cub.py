"""CUB-200-2011 in its official layout: split, classes, boxes and parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

_FILES = (
    "images.txt",
    "train_test_split.txt",
    "classes.txt",
    "image_class_labels.txt",
    "bounding_boxes.txt",
    "parts/parts.txt",
    "parts/part_locs.txt",
)
_AGAIN = "copy the dataset again"


def is_cub(root: Path) -> bool:
    """Two of the layout's marks are enough: a partial copy shall be called one, not a plain folder."""
    annotations = ("train_test_split.txt", "image_class_labels.txt", "bounding_boxes.txt")
    return (root / "images.txt").is_file() and any((root / name).is_file() for name in annotations)


def open_cub(root: Path) -> ImageSource:
    """Images in the order of ``images.txt``, paths below ``images/``."""
    for name in _FILES:
        if not (root / name).is_file():
            raise FineSightError(f"{root} is CUB-200-2011 but {name} is missing; {_AGAIN}")
    ids, names = _names(root / "images.txt")
    _require_folders(root, names)
    class_ids, classes = _names(root / "classes.txt")
    part_ids, part_names = _names(root / "parts/parts.txt")
    order = {identity: i for i, identity in enumerate(ids)}
    is_train = _per_image(root / "train_test_split.txt", 1, order)[:, 0] != 0
    class_of = _per_image(root / "image_class_labels.txt", 1, order)[:, 0]
    return ImageSource(
        root,
        "cub",
        np.array([f"images/{name}" for name in names]),
        _labels(root, class_of, class_ids),
        tuple(classes),
        np.where(is_train, "train", "test"),
        _per_image(root / "bounding_boxes.txt", 4, order).astype(np.float32),
        _parts(root / "parts/part_locs.txt", order, part_ids),
        tuple(part_names),
    )


def _names(file: Path) -> tuple[list[int], list[str]]:
    """``id name`` lines; names may hold spaces."""
    ids, names = [], []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        identity, _, name = line.strip().partition(" ")
        if not identity.isdecimal() or not name:
            raise FineSightError(f"line {number} of {file} is not 'id name': {line[:80]!r}; {_AGAIN}")
        ids.append(int(identity))
        names.append(name)
    if not ids:
        raise FineSightError(f"{file} is empty; {_AGAIN}")
    return ids, names


def _table(file: Path, columns: int) -> NDArray[np.float64]:
    try:
        table = np.loadtxt(file, np.float64, ndmin=2)
    except ValueError as error:
        raise FineSightError(f"{file} is damaged ({error}); {_AGAIN}") from error
    if table.shape[1] != columns:
        raise FineSightError(f"{file} has {table.shape[1]} columns, not {columns}; {_AGAIN}")
    return table


def _per_image(file: Path, values: int, order: dict[int, int]) -> NDArray[np.float64]:
    """``id value...`` lines -> (N, values) in the order of ``images.txt``."""
    table = _table(file, 1 + values)
    rows = _positions(file, table[:, 0], order)
    if len(rows) != len(order) or len(np.unique(rows)) != len(order):
        raise FineSightError(f"{file} describes {len(np.unique(rows))} of {len(order)} images; {_AGAIN}")
    out = np.empty((len(order), values))
    out[rows] = table[:, 1:]
    return out


def _positions(file: Path, ids: NDArray[np.float64], order: dict[int, int]) -> NDArray[np.int64]:
    rows = np.array([order.get(int(identity), -1) for identity in ids], np.int64)
    if (rows < 0).any():
        raise FineSightError(f"{file} names {int(ids[rows < 0][0])}, which is not listed; {_AGAIN}")
    return rows


def _labels(root: Path, class_of: NDArray[np.float64], class_ids: list[int]) -> NDArray[np.int64]:
    index = {identity: i for i, identity in enumerate(class_ids)}
    return _positions(root / "image_class_labels.txt", class_of, index)


def _parts(file: Path, order: dict[int, int], part_ids: list[int]) -> NDArray[np.float32]:
    """``image part x y visible`` lines -> (N, P, 3); a part without a line is not visible."""
    table = _table(file, 5)
    images = _positions(file, table[:, 0], order)
    parts = _positions(file, table[:, 1], {identity: i for i, identity in enumerate(part_ids)})
    out = np.zeros((len(order), len(part_ids), 3), np.float32)
    out[images, parts] = table[:, 2:]
    return out


def _require_folders(root: Path, names: list[str]) -> None:
    """One look per class folder, not per image: single missing images are skipped later, one by one."""
    for folder in dict.fromkeys(f"images/{name}".rsplit("/", 1)[0] for name in names):
        if not (root / folder).is_dir():
            raise FineSightError(f"{root} is CUB-200-2011 but {folder}/ is missing; {_AGAIN}")
