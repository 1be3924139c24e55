"""CUB-200-2011: split, classes, boxes and parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.layouts.layout import (
    COPY_AGAIN,
    DatasetLayout,
    DirectoryTree,
    OfficialCounts,
    damaged,
    id_and_name,
    numbered_lines,
    register_layout,
)
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError


@register_layout
class Cub(DatasetLayout):
    name = "cub"
    title = "CUB-200-2011"
    download = "CUB_200_2011.tgz, unpacked"
    homepage = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    trees = (
        DirectoryTree(
            "CUB_200_2011",
            (
                ("images/", "one folder of .jpg files per species, 001.Black_footed_Albatross/ and on"),
                ("images.txt", "id and path of every image"),
                ("classes.txt", "id and name of every species"),
                ("image_class_labels.txt", "the species of every image"),
                ("train_test_split.txt", "1 for train, 0 for test"),
                ("bounding_boxes.txt", "x, y, width, height of every bird"),
                ("parts/parts.txt", "the names of the 15 parts"),
                ("parts/part_locs.txt", "where they are"),
            ),
        ),
    )
    annotations = "boxes and 15 parts"
    official = OfficialCounts(5994, 5794, 200, smallest_train=29, smallest_test=11)  # counted in the official files
    order = 10

    def recognizes(self, root: Path) -> bool:
        """Return True for two of the dataset's files, so that a partial copy is not taken for a plain folder."""
        annotations = ("train_test_split.txt", "image_class_labels.txt", "bounding_boxes.txt")
        return (root / "images.txt").is_file() and any((root / name).is_file() for name in annotations)

    def open(self, root: Path) -> ImageSource:
        """Return the images in the order of ``images.txt``."""
        for name, _ in self.trees[0].needed[1:]:
            if not (root / name).is_file():
                raise self.missing_error(root, name)
        ids, names = _names(root / "images.txt")
        paths = [f"images/{name}" for name in names]
        self.require_folders(root, paths)
        class_ids, classes = _names(root / "classes.txt")
        part_ids, part_names = _names(root / "parts/parts.txt")
        is_train = _per_image(root / "train_test_split.txt", 1, ids)[:, 0] != 0
        labels = root / "image_class_labels.txt"
        return ImageSource(
            root,
            self.name,
            np.array(paths),
            _positions(labels, _per_image(labels, 1, ids)[:, 0], class_ids),
            tuple(classes),
            np.where(is_train, "train", "test"),
            _per_image(root / "bounding_boxes.txt", 4, ids).astype(np.float32),
            _parts(root / "parts/part_locs.txt", ids, part_ids),
            tuple(part_names),
        )


def _names(file: Path) -> tuple[list[int], list[str]]:
    """Return the ids and the names of a file of ``id name`` lines."""
    rows = [id_and_name(file, number, line) for number, line in numbered_lines(file)]
    return [int(identity) for identity, _ in rows], [name for _, name in rows]


def _table(file: Path, columns: int) -> NDArray[np.float64]:
    try:
        table = np.loadtxt([line for _, line in numbered_lines(file)], np.float64, ndmin=2)
    except ValueError as error:
        raise damaged(file, error) from error
    if table.shape[1] != columns:
        raise FineSightError(f"{file} has {table.shape[1]} columns, not {columns}; {COPY_AGAIN}")
    return table


def _per_image(file: Path, values: int, ids: list[int]) -> NDArray[np.float64]:
    """Read ``id value...`` lines -> (N, values) in the order of ``ids``."""
    table = _table(file, 1 + values)
    rows = _positions(file, table[:, 0], ids)
    if len(rows) != len(ids) or len(np.unique(rows)) != len(ids):
        raise FineSightError(f"{file} describes {len(np.unique(rows))} of {len(ids)} images; {COPY_AGAIN}")
    out = np.empty((len(ids), values))
    out[rows] = table[:, 1:]
    return out


def _positions(file: Path, wanted: NDArray[np.float64], ids: list[int]) -> NDArray[np.int64]:
    """Return where in ``ids`` each of the wanted ids stands."""
    order = {identity: i for i, identity in enumerate(ids)}
    rows = np.array([order.get(int(identity), -1) for identity in wanted], np.int64)
    if (rows < 0).any():
        raise FineSightError(f"{file} names {int(wanted[rows < 0][0])}, which is not listed; {COPY_AGAIN}")
    return rows


def _parts(file: Path, ids: list[int], part_ids: list[int]) -> NDArray[np.float32]:
    """Read ``image part x y visible`` lines -> (N, P, 3); a part without a line is not visible."""
    table = _table(file, 5)
    out = np.zeros((len(ids), len(part_ids), 3), np.float32)
    out[_positions(file, table[:, 0], ids), _positions(file, table[:, 1], part_ids)] = table[:, 2:]
    return out
