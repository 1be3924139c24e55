"""Labels that come from other tools. Their files are not trusted: a path in them is looked up, never opened."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.curation.findings import label_of, split_of
from finesight.data.listing import not_an_image_suffix
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError, unknown
from finesight.io.console import format_count, printable_line
from finesight.io.table import write_table

EXAMPLES = 3


@dataclass(frozen=True)
class Imported:
    """What another tool says of one image: its labels (several where people or choices disagree), or to drop it."""

    path: str
    labels: tuple[str, ...] = ()
    drop: bool = False


@dataclass(frozen=True)
class NewLabels:
    """A source with labels that a person gave, as rows of a list, and what became of the others."""

    rows: list[tuple[str, ...]]  # path, label and, where the source has splits, split
    columns: tuple[str, ...]
    changed: int  # images whose label is another one now
    added: int  # images that had no label
    dropped: int
    unlabeled: int  # images that have no label and are left out
    unclear: tuple[str, ...] = ()  # images with labels that contradict each other: they keep their own
    gone: tuple[str, ...] = ()  # named in the file, and not in the data
    unlistable: int = 0  # names that a list cannot hold

    def write(self, out: Path) -> None:
        """Write the list, as ``--data`` reads it."""
        write_table(out, self.columns, self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        counts = {name: getattr(self, name) for name in ("changed", "added", "dropped", "unlabeled", "unlistable")}
        names = {"unclear": [*self.unclear], "gone": [*self.gone]}
        labels = sorted({row[1] for row in self.rows})
        return {"images": len(self.rows), "labels": labels, **counts, **names}

    def sentences(self) -> Iterable[str]:
        """Yield what people should know beyond the counts."""
        if self.unclear:
            yield f"{format_count(len(self.unclear), 'image')} with labels that contradict each other: {_some(self.unclear)}. Their own labels stay."  # noqa: E501
        if self.gone:
            yield f"{format_count(len(self.gone), 'image')} of the file not in the data: {_some(self.gone)}."
        if self.unlistable:
            yield f"{format_count(self.unlistable, 'image')} left out: a list cannot hold the name."


def require(holds: bool, sentence: str) -> None:
    """Raise ``FineSightError`` with the sentence unless it holds."""
    if not holds:
        raise FineSightError(printable_line(sentence))


def read_json(file: Path, what: str) -> Any:
    """Return what a JSON file holds; a ``FineSightError`` says if it is none."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise FineSightError(f"{file} cannot be read: {error.strerror}. It should be {what}.") from error
    except (ValueError, RecursionError) as error:
        raise FineSightError(f"{file} is no JSON file: {error}. It should be {what}.") from error


def apply_labels(source: ImageSource, given: Iterable[Imported], *, new_labels: bool = False) -> NewLabels:
    """Return the images of a source with the labels of a file in the place of their own.

    Images that the file does not name keep their label. A path outside the folder of the source is a
    ``FineSightError``, and so is a label that is no class of the source, unless ``new_labels`` allows it.
    """
    find = _Finder(source)
    chosen: dict[int, str] = {}
    dropped: set[int] = set()
    unclear, gone, strange = [], [], Counter[str]()
    for one in given:
        image = find(one.path)
        if image is None:
            gone.append(one.path)
        elif one.drop:
            dropped.add(image)
        elif one.labels:
            (label, votes), *others = Counter(one.labels).most_common(2)
            if others and others[0][1] == votes:
                unclear.append(one.path)
                continue
            strange[label] += bool(source.classes) and label not in source.classes
            chosen[image] = label
    if gone and not (chosen or dropped or unclear):
        raise FineSightError(
            f"None of the labels is of an image of {source.root}: not there is {_some(gone)}. "
            "Give --data the folder that they were exported from."
        )
    if +strange and not new_labels:
        name = (+strange).most_common(1)[0][0]
        known = str(unknown("class", name, source.classes))
        raise FineSightError(f"{known} Correct the label, or give --new-labels if it is meant as a new class.")
    return _rows(source, chosen, dropped, unclear, gone)


def _rows(
    source: ImageSource, chosen: dict[int, str], dropped: set[int], unclear: list[str], gone: list[str]
) -> NewLabels:
    rows: list[tuple[str, ...]] = []
    changed = added = unlabeled = unlistable = 0
    for i in range(len(source)):
        if i in dropped:
            continue
        own, path = label_of(source, i), str(source.file(i))
        label = chosen.get(i, own)
        if not label:
            unlabeled += 1
            continue
        if "\n" in path or "\r" in path or path != path.strip() or not_an_image_suffix(path):
            unlistable += 1
            continue
        changed += own is not None and label != own
        added += own is None
        split = split_of(source, i)
        rows.append((path, label) if split is None else (path, label, split))
    if not rows:
        raise FineSightError("No image would have a label: nothing is written.")
    columns = ("path", "label") if source.splits is None else ("path", "label", "split")
    return NewLabels(rows, columns, changed, added, len(dropped), unlabeled, tuple(unclear), tuple(gone), unlistable)


class _Finder:
    """Looks up paths of a file among the images of a source."""

    def __init__(self, source: ImageSource) -> None:
        self.root = os.path.abspath(source.root)
        files = [os.path.normpath(os.path.join(self.root, path)) for path in source.paths.tolist()]
        self.images = {file: i for i, file in enumerate(files)}
        stems = Counter(os.path.splitext(file)[0] for file in files)
        self.stems = {stem: i for file, i in self.images.items() if stems[stem := os.path.splitext(file)[0]] == 1}

    def __call__(self, path: str) -> int | None:
        """Return the image of a path; None if it is gone. Raises ``FineSightError`` if it leaves the folder."""
        file = os.path.normpath(os.path.join(self.root, path.removeprefix("file://")))
        if (image := self.images.get(file, self.stems.get(file))) is not None:  # some formats keep no suffix
            return image
        if "://" not in path and not file.startswith(self.root.rstrip(os.sep) + os.sep):
            raise FineSightError(
                f"The path {printable_line(path)} leaves the folder of the data ({self.root}): the file is refused. "
                "Give --data the folder that it was exported from."
            )
        return None


def _some(names: Iterable[str]) -> str:
    shown = [printable_line(name) for name in names]
    more = len(shown) - EXAMPLES
    return ", ".join(shown[:EXAMPLES]) + (f" and {more:,} more" if more > 0 else "")


def count_labels(source: ImageSource) -> int:
    """Return how many images have a label."""
    return 0 if source.labels is None else int(np.count_nonzero(source.labels >= 0))
