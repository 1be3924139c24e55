"""How large the named datasets are as published: a copy that differs is no error, but its results are not theirs."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.layouts.catalog import open_as, recognized, split_name, title_of
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.io.console import format_count

OFFICIAL = {  # kind: train images, test images, classes
    "cub": (5994, 5794, 200),
    "cars": (8144, 8041, 196),
    "inat2019": (265213, 3030, 1010),
    "aircraft": (6667, 3333, 100),
    "cifar100": (50000, 10000, 100),
}
# kind: images of the smallest class, in train and in test. Those of CUB are counted in the official files; those of
# aircraft, CIFAR-100 and the validation images of iNaturalist follow from their even splits. Left out where the
# publishers do not say: Stanford Cars, and iNaturalist's train images.
MINIMA: dict[str, tuple[int | None, int | None]] = {
    "cub": (29, 11),
    "inat2019": (None, 3),
    "aircraft": (66, 33),
    "cifar100": (500, 100),
}
SPLITS = ("train", "test")
_NAMED = 3  # classes or files that are named


@dataclass(frozen=True)
class Verification:
    """A folder beside the published dataset."""

    root: str
    dataset: str | None  # None for what is none of the named ones
    complete: bool
    problems: tuple[str, ...]
    images: int | None = None  # None where it could not be opened
    train: int | None = None
    test: int | None = None
    classes: int | None = None
    boxes: bool | None = None
    parts: int | None = None

    def to_json(self) -> dict[str, Any]:
        official = OFFICIAL.get(self.dataset or "")
        expected = None if official is None else dict(zip((*SPLITS, "classes"), official, strict=True))
        return asdict(self) | {"official": expected}

    def words(self) -> str:
        if self.dataset is None:
            return "none of the named datasets: there are no official numbers to compare with"
        if self.complete:
            return (
                f"complete: all numbers are those of the official {title_of(self.dataset)}, every listed file is there"
            )
        return f"not the whole {title_of(self.dataset)}: {'; '.join(self.problems)}"


def verify(data: str | Path) -> Verification:
    """Whether a folder is the whole official dataset; a damaged one is described, not an error."""
    name, text = split_name(data)
    root = Path(text).expanduser().absolute()
    if name is None and root.is_dir():
        name = recognized(root)
    if name is None or not root.exists():
        return verified(open_source(data))
    try:
        return verified(open_as(name, root))
    except FineSightError as error:
        return Verification(str(root), name, complete=False, problems=(str(error),))


def verified(source: ImageSource) -> Verification:
    """The counts of the dataset's lists, and whether every listed file is there."""
    named = source.kind in OFFICIAL
    problems = (*differences(source), *absent_files(source)) if named else ()
    return Verification(
        root=str(source.root),
        dataset=source.kind if named else None,
        complete=named and not problems,
        problems=problems,
        images=len(source),
        train=None if source.splits is None else int((source.splits == "train").sum()),
        test=None if source.splits is None else int((source.splits == "test").sum()),
        classes=len(source.classes),
        boxes=source.boxes is not None,
        parts=len(source.part_names),
    )


def open_whole(name: str, root: Path) -> ImageSource:
    """The folder as this dataset, all of it: anything that is missing is an error."""
    source = open_as(name, root)
    if problems := [*differences(source), *absent_files(source)]:
        raise FineSightError(
            f"{root} is not the whole {title_of(name)}: {'; '.join(problems)}. Complete it, or leave out {name}: "
            "to use what is there"
        )
    return source


def missing_words(source: ImageSource) -> str | None:
    """What differs from the published dataset, in words; nothing when all is there or the kind is not one of them.

    Counted is what the dataset's lists hold: files that are listed but gone are found when they are read.
    """
    found = differences(source)
    return f"not the official {source.kind}: {'; '.join(found)}" if found else None


def differences(source: ImageSource) -> list[str]:
    if source.kind not in OFFICIAL:
        return []
    *sizes, classes = OFFICIAL[source.kind]
    words = []
    if source.splits is None:
        words.append(_differs(len(source), sum(sizes), "images"))
        words.append("the train/test split is missing")
    else:
        for split, size in zip(SPLITS, sizes, strict=True):
            words.append(_differs(int((source.splits == split).sum()), size, f"{split} images"))
    words += _class_words(source, classes)
    words += _minimum_words(source)
    return [word for word in words if word]


def absent_files(source: ImageSource) -> list[str]:
    """Files that the lists name and the folders do not hold: one look per folder, not per file."""
    held: dict[str, frozenset[str]] = {}
    absent = []
    for path in source.paths.tolist():
        folder, _, name = path.rpartition("/")
        if folder not in held:
            held[folder] = _names(os.path.join(source.root, folder))
        if name not in held[folder]:
            absent.append(path)
    if not absent:
        return []
    return [f"{len(absent):,} of {len(source):,} listed files are not there ({_some(absent)})"]


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _class_words(source: ImageSource, official: int) -> list[str]:
    if source.labels is None:
        return ["the labels are missing"]
    used = set(np.unique(source.labels[source.labels >= 0]).tolist())
    unused = [name for i, name in enumerate(source.classes) if i not in used]
    word = _differs(len(used), official, "classes")
    if word and unused:
        word += f" (no image of {_some(unused)})"
    unlabeled = int((source.labels < 0).sum())
    return [word, f"{unlabeled:,} labels missing" if unlabeled else ""]


def _minimum_words(source: ImageSource) -> list[str]:
    """Of the classes that have an image: those that have none are named already."""
    minima = MINIMA.get(source.kind)
    if minima is None or source.labels is None or source.splits is None:
        return []
    words, used = [], np.unique(source.labels[source.labels >= 0])
    for split, minimum in zip(SPLITS, minima, strict=True):
        labels = source.labels[(source.splits == split) & (source.labels >= 0)]
        counts = np.bincount(labels, minlength=len(source.classes))[used]
        if minimum is not None and (small := used[counts < minimum]).size:
            named = _some([f"{source.classes[i]} {n:,}" for i, n in zip(small, counts[counts < minimum], strict=True)])
            words.append(
                f"fewer than {minimum:,} {split} images in {format_count(len(small), 'class', 'classes')} ({named})"
            )
    return words


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _differs(found: int, official: int, what: str) -> str:
    if found < official:
        return f"{official - found:,} of {official:,} {what} missing"
    return f"{found:,} {what} where {official:,} belong" if found > official else ""
