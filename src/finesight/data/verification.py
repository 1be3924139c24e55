"""Compare a folder with the published dataset: a copy that differs can be used, but its results are not comparable."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.layouts.layout import (
    LAYOUTS,
    DatasetLayout,
    OfficialCounts,
    official_counts,
    open_dataset,
    recognize_layout,
)
from finesight.data.named_path import split_named_path
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.io.console import format_count

_EXAMPLES = 3  # classes or files that are named


@dataclass(frozen=True)
class Verification:
    """What a folder holds, and how it differs from the published dataset."""

    root: str
    dataset: str | None  # None if it is not a published dataset
    complete: bool
    problems: tuple[str, ...]
    images: int | None = None  # None where it could not be opened
    train: int | None = None
    test: int | None = None
    classes: int | None = None
    boxes: bool | None = None
    parts: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the official counts."""
        counts = None if self.dataset is None else official_counts(self.dataset)
        expected = None if counts is None else {key: getattr(counts, key) for key in ("train", "test", "classes")}
        return asdict(self) | {"official": expected}

    def words(self) -> str:
        """Return the verdict as a sentence."""
        if self.dataset is None:
            return "none of the named datasets: there are no official numbers to compare with"
        title = LAYOUTS[self.dataset].title
        boxes = "" if self.boxes is not False or not self._has_boxes else "; this form has no boxes"
        if self.complete:
            return f"complete: all numbers are those of the official {title}, every listed file is there{boxes}"
        return f"not the whole {title}: {'; '.join(self.problems)}{boxes}"

    @property
    def _has_boxes(self) -> bool:
        """Whether the official dataset has boxes. A form without them can be whole: no score needs them."""
        return self.dataset is not None and "boxes" in LAYOUTS[self.dataset].annotations


def verify(data: str | Path) -> Verification:
    """Compare a folder with the dataset it holds. A damaged dataset is described; it raises no error."""
    name, text = split_named_path(data)
    root = Path(text).expanduser().absolute()
    layout = LAYOUTS[name] if name is not None else recognize_layout(root) if root.is_dir() else None
    if layout is None or not root.exists():
        return verify_source(open_source(data))
    try:
        return verify_source(open_dataset(layout, root))
    except FineSightError as error:
        return Verification(str(root), layout.name, complete=False, problems=(str(error),))


def verify_source(source: ImageSource) -> Verification:
    """Compare the lists of a dataset with the official counts, and look for files that are listed but missing."""
    official = official_counts(source.kind) is not None
    problems = _problems(source) if official else ()
    return Verification(
        root=str(source.root),
        dataset=source.kind if official else None,
        complete=official and not problems,
        problems=problems,
        images=len(source),
        train=None if source.splits is None else int((source.splits == "train").sum()),
        test=None if source.splits is None else int((source.splits == "test").sum()),
        classes=len(source.classes),
        boxes=source.boxes is not None,
        parts=len(source.part_names),
    )


def open_complete(layout: DatasetLayout, root: Path) -> ImageSource:
    """Open a folder as this dataset, or raise an error if anything of it is missing."""
    source = open_dataset(layout, root)
    if problems := _problems(source):
        raise FineSightError(
            f"{root} is not the whole {layout.title}: {'; '.join(problems)}. Complete it, or leave out {layout.name}: "
            "to use what is there"
        )
    return source


def describe_differences(source: ImageSource) -> str | None:
    """Return how the lists differ from the published dataset, if they do; missing files are not looked for."""
    found = differences(source)
    return f"not the official {source.kind}: {'; '.join(found)}" if found else None


def differences(source: ImageSource) -> list[str]:
    """Return the differences between the lists of a dataset and its official counts."""
    official = official_counts(source.kind)
    if official is None:
        return []
    words = []
    if source.splits is None:
        words.append(_differs(len(source), official.train + official.test, "images"))
        words.append("the train/test split is missing")
    else:
        for split, size in (("train", official.train), ("test", official.test)):
            words.append(_differs(int((source.splits == split).sum()), size, f"{split} images"))
    words += _class_differences(source, official.classes)
    words += _small_classes(source, official)
    return [word for word in words if word]


def missing_files(source: ImageSource) -> list[str]:
    """Return the paths that the lists name and the folders do not hold. Each folder is listed once."""
    names: dict[str, frozenset[str]] = {}
    missing = []
    for path in source.paths.tolist():
        folder, _, name = path.rpartition("/")
        if folder not in names:
            names[folder] = _list_names(os.path.join(source.root, folder))
        if name not in names[folder]:
            missing.append(path)
    return missing


def _problems(source: ImageSource) -> tuple[str, ...]:
    missing = missing_files(source)
    words = f"{len(missing):,} of {len(source):,} listed files are not there ({_examples(missing)})"
    return (*differences(source), *([words] if missing else []))


def _list_names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _class_differences(source: ImageSource, official: int) -> list[str]:
    if source.labels is None:
        return ["the labels are missing"]
    used = set(np.unique(source.labels[source.labels >= 0]).tolist())
    unused = [name for i, name in enumerate(source.classes) if i not in used]
    word = _differs(len(used), official, "classes")
    if word and unused:
        word += f" (no image of {_examples(unused)})"
    unlabeled = int((source.labels < 0).sum())
    return [word, f"{unlabeled:,} labels missing" if unlabeled else ""]


def _small_classes(source: ImageSource, official: OfficialCounts) -> list[str]:
    """Return words on classes with too few images; classes without any image are named elsewhere."""
    if source.labels is None or source.splits is None:
        return []
    words, used = [], np.unique(source.labels[source.labels >= 0])
    for split, minimum in (("train", official.smallest_train), ("test", official.smallest_test)):
        labels = source.labels[(source.splits == split) & (source.labels >= 0)]
        counts = np.bincount(labels, minlength=len(source.classes))[used]
        if minimum is not None and (small := used[counts < minimum]).size:
            few = [f"{source.classes[i]} {n:,}" for i, n in zip(small, counts[counts < minimum], strict=True)]
            classes = format_count(len(small), "class", "classes")
            words.append(f"fewer than {minimum:,} {split} images in {classes} ({_examples(few)})")
    return words


def _examples(names: list[str]) -> str:
    more = f" and {len(names) - _EXAMPLES:,} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more


def _differs(count: int, official: int, what: str) -> str:
    if count < official:
        return f"{official - count:,} of {official:,} {what} missing"
    return f"{count:,} {what} where {official:,} belong" if count > official else ""
