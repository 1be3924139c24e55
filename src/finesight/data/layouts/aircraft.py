"""FGVC-Aircraft 2013b at the level of variants: split, classes and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.layouts.layout import (
    COPY_AGAIN,
    DatasetLayout,
    DirectoryTree,
    OfficialCounts,
    id_and_name,
    numbered_lines,
    register_layout,
    wrong_line,
)
from finesight.data.listing import split_folders
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

BANNER = 20  # pixel rows at the bottom of every image that name the photographer
_VARIANTS = "variants.txt"
_BOXES = "images_box.txt"
_TRAINVAL = "images_variant_trainval.txt"
_TRAIN_AND_VAL = ("images_variant_train.txt", "images_variant_val.txt")
_TEST = "images_variant_test.txt"
_LISTS = (_VARIANTS, _BOXES, _TRAINVAL, *_TRAIN_AND_VAL, _TEST, "families.txt", "manufacturers.txt")


@register_layout
class Aircraft(DatasetLayout):
    name = "aircraft"
    title = "FGVC-Aircraft 2013b"
    download = "fgvc-aircraft-2013b.tar.gz, unpacked"
    homepage = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
    trees = (
        DirectoryTree(
            "fgvc-aircraft-2013b",
            (
                ("data/images/", "0034309.jpg and on"),
                ("data/variants.txt", "the names of the 100 variants"),
                ("data/images_variant_trainval.txt", "id and variant of the train images (or its two halves)"),
                ("data/images_variant_test.txt", "those of the test images"),
            ),
            (("data/images_box.txt", "x1, y1, x2, y2 of every aircraft"),),
            inner="data/",
        ),
    )
    annotations = "boxes"
    note = (
        "Classes are the variants; train is the official trainval. The bottom 20 pixel rows of every image name "
        "its photographer: they are cut off."
    )
    official = OfficialCounts(6667, 3333, 100, smallest_train=66, smallest_test=33)  # the splits are even
    order = 30

    def recognizes(self, root: Path) -> bool:
        """Return True for two of the dataset's lists, so that a partial copy is not taken for a plain folder.

        Lists beside train and test folders do not count: somebody sorted those images into classes.
        """
        data = _data_folder(root)
        lists = sum((data / name).is_file() for name in _LISTS)
        return lists >= 2 and ((data / "images").is_dir() or not (split_folders(root) or split_folders(data)))

    def open(self, root: Path) -> ImageSource:
        """Return the images, trainval then test. ``root`` is the folder ``data`` or the one that holds it."""
        data = _data_folder(root)
        train_lists: tuple[str, ...] = (_TRAINVAL,)
        if not (data / _TRAINVAL).is_file() and all((data / half).is_file() for half in _TRAIN_AND_VAL):
            train_lists = _TRAIN_AND_VAL
        for name in (_VARIANTS, _TEST, *train_lists):
            if not (data / name).is_file():
                raise self.missing_error(data, name)
        if not (data / "images").is_dir():
            raise self.missing_error(data, "images/")
        classes = _class_names(data / _VARIANTS)
        seen: dict[str, Path] = {}
        train = [row for name in train_lists for row in _rows(data / name, classes, seen)]
        test = _rows(data / _TEST, classes, seen)
        ids = [identity for identity, _ in (*train, *test)]
        boxes = data / _BOXES
        return ImageSource(
            data,
            self.name,
            np.array([f"images/{identity}.jpg" for identity in ids]),
            np.array([label for _, label in (*train, *test)], np.int64),
            tuple(classes),
            np.repeat(["train", "test"], [len(train), len(test)]),
            _boxes(boxes, ids) if boxes.is_file() else None,
            trim=BANNER,
        )


def _data_folder(root: Path) -> Path:
    return root / "data" if any((root / "data" / name).is_file() for name in _LISTS) else root


def _class_names(file: Path) -> dict[str, int]:
    """Return the label of each variant; names may hold spaces and slashes."""
    classes: dict[str, int] = {}
    for number, name in numbered_lines(file):
        if name in classes:
            raise wrong_line(file, number, f"names {name!r} again")
        classes[name] = len(classes)
    return classes


def _rows(file: Path, classes: dict[str, int], seen: dict[str, Path]) -> list[tuple[str, int]]:
    """Read ``id name`` lines -> id, label; ``seen`` says which list an image was already in."""
    rows = []
    for number, line in numbered_lines(file):
        identity, name = id_and_name(file, number, line)
        if name not in classes:
            raise wrong_line(file, number, f"names {name[:80]!r}, which is not in {_VARIANTS}")
        if identity in seen:
            raise wrong_line(file, number, f"lists image {identity} again, which is in {seen[identity].name}")
        seen[identity] = file
        rows.append((identity, classes[name]))
    return rows


def _boxes(file: Path, ids: Sequence[str]) -> NDArray[np.float32]:
    """Read ``id x1 y1 x2 y2`` lines (the first pixel is 1, both corners inside) -> (N, 4) x, y, width, height."""
    corners: dict[str, list[int]] = {}
    for number, line in numbered_lines(file):
        values = line.split()
        if len(values) != 5 or not all(value.isascii() and value.isdecimal() for value in values):
            raise wrong_line(file, number, f"is not 'id x1 y1 x2 y2': {line[:80]!r}")
        x1, y1, x2, y2 = map(int, values[1:])
        if x1 > x2 or y1 > y2:
            raise wrong_line(file, number, f"is no box: {line[:80]!r}")
        corners[values[0]] = [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]
    without = [identity for identity in ids if identity not in corners]
    if without:
        raise FineSightError(
            f"{file} has no box of {len(without):,} images, the first being {without[0]}; {COPY_AGAIN}"
        )
    return np.array([corners[identity] for identity in ids], np.float32)
