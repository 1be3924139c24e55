"""Say in plain words what FineSight sees in a folder or list: ``finesight inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from finesight.data.quality import TINY, CheckReport, check_source
from finesight.data.sources import ImageSource
from finesight.io.console import format_count

SAMPLE = 1000  # images that are opened; of more, as many spread over all
EXAMPLES = 3


@dataclass(frozen=True)
class Inspection:
    """What ``inspect_source`` found."""

    source: ImageSource
    formats: Mapping[str, int]  # images by suffix, in lower case
    levels: Mapping[int, int]  # images by the number of folders they lie in
    odd_names: Mapping[str, int]  # what is unusual in names -> images
    check: CheckReport  # of the images that were opened

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        source, check = self.source, self.check
        return {
            "root": str(source.root),
            "kind": source.kind,
            "images": len(source),
            "formats": dict(self.formats),
            "levels": {str(level): count for level, count in self.levels.items()},
            "classes": list(source.classes),
            "labels": self.label_words(),
            "splits": None if source.splits is None else dict(sorted(Counter(source.splits.tolist()).items())),
            "opened": check.images,
            "short_side": None if check.short_side is None else vars(check.short_side),
            "unreadable": [vars(file) for file in check.unreadable],
            "tiny": [vars(image) for image in check.tiny],
            "equal_files": len(self._copies()),
            "odd_names": dict(self.odd_names),
            "left_out": [vars(file) for file in check.left_out],
        }

    def lines(self) -> Iterator[str]:
        """Yield what people read."""
        yield self.source.describe().splitlines()[0]
        yield f"formats: {_counts(self.formats)}"
        if self.levels:
            places = {0: "directly in it", 1: "one folder deep"}
            yield f"where: {_counts({places.get(k, f'{k} folders deep'): n for k, n in self.levels.items()})}"
        yield f"labels: {self.label_words()}"
        yield f"splits: {self._split_words()}"
        yield from self._opened()
        if self.odd_names:
            yield f"names: {_counts(self.odd_names)}; they are used as they are"
        if left_out := self.check.left_out:
            yield f"left out: {len(left_out):,}, {_some([f'{file.path}: {file.reason}' for file in left_out])}"

    def label_words(self) -> str:
        """Return what is taken as labels, or why there are none."""
        source = self.source
        if source.labels is not None:
            where = {"class folders": "the name of the top folder", "splits": "the folder below train and test"}
            used = where.get(source.kind, "the list's column" if source.kind == "list" else f"those of {source.kind}")
            classes = f"{format_count(len(source.classes), 'class', 'classes')} ({_some(source.classes)})"
            return f"{used}, {classes}, for scores only: {_NO_LABELS}"
        if source.kind == "list":
            reason = "the list has no column of labels"
        elif not self.levels.get(0):
            reason = "there is only one folder with images"
        elif len(self.levels) == 1:
            reason = "all images lie in one folder"
        else:
            reason = (
                f"{format_count(self.levels[0], 'image')} beside the folders: with all in folders, those were labels"
            )
        return f"none ({reason}): {_NO_LABELS}"

    def _split_words(self) -> str:
        if self.source.splits is None:
            return "none: all images are used for training and can be searched"
        parts = Counter(self.source.splits.tolist())
        return f"{_counts(parts)}; only train is trained on"

    def _opened(self) -> Iterator[str]:
        check, images = self.check, len(self.source)
        if check.images < images:
            yield f"opened: {check.images:,} of {images:,}, spread over all; what follows is about those"
        if (side := check.short_side) is not None:
            yield f"size: short side {side.smallest:,} to {side.largest:,} px, median {side.median:,.0f}"
        if check.unreadable:
            named = _some([f"{file.path}: {file.reason}" for file in check.unreadable])
            yield f"unreadable: {len(check.unreadable):,}, {named}; training leaves them out"
        if check.tiny:
            named = _some([f"{image.path}: {image.width}×{image.height}" for image in check.tiny])
            yield f"tiny: {len(check.tiny):,} with a short side below {TINY} px, {named}"
        if copies := self._copies():
            yield f"copies: {format_count(len(copies), 'file')} with the bytes of another, {_some(copies)}"

    def _copies(self) -> list[str]:
        return [image.path for group in self.check.duplicates for image in group.images[1:]]


_NO_LABELS = "training needs no labels and does not read them"


def inspect_source(source: ImageSource, *, workers: int | None = None, progress: bool = True) -> Inspection:
    """Look at the names of all images, and into at most ``SAMPLE`` of them."""
    paths: list[str] = source.paths.tolist()
    absolute = source.kind == "list"
    few = np.unique(np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).round().astype(np.int64))
    return Inspection(
        source,
        formats=dict(Counter(PurePosixPath(path).suffix.lower() for path in paths).most_common()),
        levels={} if absolute else dict(sorted(Counter(path.count("/") for path in paths).items())),
        odd_names={words: n for words, n in _odd_names(paths).items() if n},
        check=check_source(source.select(few), near=False, workers=workers, progress=progress),
    )


def _odd_names(paths: Sequence[str]) -> dict[str, int]:
    names = [PurePosixPath(path).name for path in paths]
    no_text = [any("\ud800" <= letter <= "\udfff" for letter in name) for name in names]
    return {
        "with spaces": sum(" " in name for name in names),
        "with letters beyond ASCII": sum(
            not name.isascii() and not odd for name, odd in zip(names, no_text, strict=True)
        ),
        "with an upper-case ending": sum(
            PurePosixPath(name).suffix != PurePosixPath(name).suffix.lower() for name in names
        ),
        "that are no valid UTF-8": sum(no_text),
    }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in counts.items())


def _some(examples: Sequence[str]) -> str:
    more = len(examples) - EXAMPLES
    return ", ".join(examples[:EXAMPLES]) + (f" and {more:,} more" if more > 0 else "")
