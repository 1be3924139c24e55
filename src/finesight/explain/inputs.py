"""Select the images to explain: files, folders, lists or data sets, and of many a few that stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import IMAGE_SUFFIXES
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.io.console import format_count


@dataclass(frozen=True)
class Selection:
    """The images to explain, and how they were chosen."""

    files: list[Path]
    names: list[str]  # for people, and for the files that are written: without suffix
    classes: list[str]  # of each image; empty where none is known
    choice: str  # in words: "8 of 5,794 test images, evenly spaced over 200 classes"
    root: Path  # what a name may be relative to
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path, reason: seen while listing

    def __len__(self) -> int:
        return len(self.files)

    def words(self, index: int) -> tuple[str, str]:
        """Return class and name of one, for a figure."""
        return self.classes[index], PurePosixPath(self.names[index]).name


def select_images(images: Sequence[str | Path], count: int | None) -> Selection:
    """Return all images given, or ``count`` of them, spaced evenly: over the classes where there are labels.

    Of a data set that has a test split, only the test images are taken. A ``FineSightError`` says what is missing.
    """
    if not images:
        raise FineSightError("There are no images to explain: give files, a folder, a list or a data set.")
    if count is not None and count < 1:
        raise FineSightError(f"--count must be at least 1, not {count}.")
    places = [Path(image).expanduser() for image in images]
    for place in places:
        if not place.exists():
            raise FineSightError(f"{place} does not exist: give image files, a folder of images, a list or a data set.")
    if len(places) == 1 and not _is_image(places[0]):
        return _select_from(open_source(places[0]), count)
    found = [_listed(place) for place in places]
    rows = [row for one in found for row in zip(one.files, one.names, one.classes, strict=True)]
    files, names, classes = map(list, zip(*(rows[i] for i in spaced(len(rows), count)), strict=True))
    skipped = [entry for one in found for entry in one.skipped]
    return Selection(files, names, classes, _words(len(files), len(rows), "image", ""), Path.cwd(), skipped)


def _is_image(place: Path) -> bool:
    return place.is_file() and place.suffix.lower() in IMAGE_SUFFIXES


def _listed(place: Path) -> Selection:
    if _is_image(place):
        return Selection([place], [place.stem], [""], "", place.parent)
    return _select_from(open_source(place), None)


def _select_from(source: ImageSource, count: int | None) -> Selection:
    tested = source.split("test")
    kind = "image"
    if source.splits is not None and len(tested):
        source, kind = tested, "test image"
    if source.labels is not None and bool((source.labels >= 0).any()):
        chosen = spaced_over_labels(source.labels, count)
        over = f" over {format_count(len(np.unique(source.labels)), 'class', 'classes')}"
    else:
        chosen, over = spaced(len(source), count), ""
    few = source.select(chosen)
    names = [str(PurePosixPath(path).with_suffix("")) for path in few.paths.tolist()]
    labels = few.labels.tolist() if few.labels is not None else [-1] * len(few)
    classes = [few.classes[label] if label >= 0 else "" for label in labels]
    words = _words(len(few), len(source), kind, over)
    return Selection([few.file(i) for i in range(len(few))], names, classes, words, source.root, list(source.skipped))


def _words(chosen: int, there: int, kind: str, over: str) -> str:
    kinds = kind if there == 1 else f"{kind}s"
    return f"all {there:,} {kinds}" if chosen == there else f"{chosen:,} of {there:,} {kinds}, evenly spaced{over}"


def spaced(there: int, count: int | None) -> NDArray[np.int64]:
    """Return ``count`` of ``there`` indices from the first to the last; all of them without a smaller count."""
    count = there if count is None else min(count, there)
    return np.linspace(0, there - 1, count).round().astype(np.int64)


def spaced_over_labels(labels: NDArray[np.int64], count: int | None) -> NDArray[np.int64]:
    """Return images of as many classes as can be; several of a class only if there are fewer classes than ``count``."""
    if count is None or count >= len(labels):
        return np.arange(len(labels))
    if count <= len(np.unique(labels)):
        return spaced_over_classes(labels, count)
    by_class = np.argsort(labels, kind="stable")
    return np.asarray(by_class[spaced(len(labels), count)], np.int64)


def spaced_over_classes(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the first image of each of ``count`` classes, evenly spaced from the first class to the last."""
    classes, first = np.unique(labels, return_index=True)
    return np.asarray(first[spaced(len(classes), count)], np.int64)
