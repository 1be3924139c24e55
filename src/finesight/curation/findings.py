"""What ``finesight clean`` finds: suspected labels, copies and outliers, and the table of them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.curation.notebook import cleaning_html
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.features.wide import Features
from finesight.io.table import read_table, write_table

LABEL, DUPLICATE, OUTLIER = "label", "duplicate", "outlier"  # kinds of findings
COLUMNS = ("path", "kind", "why", "score", "given", "suggested", "partner", "split", "decision")
KEEP, RELABEL, DROP = "keep", "relabel", "drop"  # decisions of a person
EXACT, NEAR, MIRRORED, SIMILAR = "exact", "near", "mirrored", "similar"  # kinds of copies, the surest first
NEIGHBORS = 5  # that are named with a finding
KIND_WORDS = {
    EXACT: "the same bytes",
    NEAR: "the same picture",
    MIRRORED: "the mirror image",
    SIMILAR: "almost the same to the network, such as a crop",
}


@dataclass(frozen=True)
class Neighbor:
    """An image that is like another one."""

    image: int  # index into the source
    path: str
    label: str | None
    cosine: float


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong."""

    image: int
    path: str
    score: float  # the estimated probability that the label is wrong
    given: str
    suggested: str
    split: str | None
    neighbors: tuple[Neighbor, ...]


@dataclass(frozen=True)
class Copy:
    """An image of a group that shows one picture; ``kind`` and ``cosine`` are about it and the first of the group."""

    image: int
    path: str
    kind: str
    cosine: float
    label: str | None
    split: str | None
    width: int
    height: int


@dataclass(frozen=True)
class Copies:
    """Images that show one picture, the one to keep first: most pixels, then the first in order."""

    images: tuple[Copy, ...]

    @property
    def kind(self) -> str:
        """The least sure kind among them."""
        return max((copy.kind for copy in self.images[1:]), key=list(KIND_WORDS).index)

    @property
    def conflicts(self) -> bool:
        """Whether they have different labels."""
        return len({copy.label for copy in self.images} - {None}) > 1

    @property
    def leaks(self) -> bool:
        """Whether they are in both splits."""
        return len({copy.split for copy in self.images}) > 1


@dataclass(frozen=True)
class Outlier:
    """An image that is like no other, or hard to use; ``why`` says which."""

    image: int
    path: str
    score: float  # how far it lies from the others, in robust standard deviations
    why: tuple[str, ...]
    label: str | None
    split: str | None
    neighbors: tuple[Neighbor, ...]


@dataclass(frozen=True, eq=False)
class Cleaning:
    """What was found in a source; in a notebook it shows the pictures.

    Index ``i`` is the same image in ``source``, ``features`` and the arrays.
    """

    source: ImageSource  # the readable images
    sizes: NDArray[np.int64]  # (N, 2) width and height of the upright files
    features: Features  # (N, D)
    nearest: NDArray[np.int64]  # (N, k) the images most like each one
    cosines: Floats  # (N, k)
    wrong: Floats | None  # (N,) probability that each label is wrong, 0 where there is none; None without labels
    suggested: NDArray[np.int64] | None  # (N,) the class that the others vote for
    distance: Floats  # (N,) how far each lies from the others, in robust standard deviations
    suspects: tuple[Suspect, ...]  # the most probable first
    duplicates: tuple[Copies, ...]  # the largest first
    outliers: tuple[Outlier, ...]  # the farthest first
    skipped: tuple[tuple[str, str], ...]  # path, reason: files that could not be read
    notes: tuple[str, ...] = ()  # what was not looked for, and why

    @property
    def expected_errors(self) -> float:
        """How many labels are wrong, as far as the probabilities say."""
        return 0.0 if self.wrong is None else float(self.wrong.sum())

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The table of ``clean.csv``: one row for each finding."""
        return [dict(zip(COLUMNS, row, strict=True)) for row in self._rows()]

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for one in self.suspects:
            partner = next((near.path for near in one.neighbors if near.label == one.suggested), "")
            yield one.path, LABEL, "", f"{one.score:.4f}", one.given, one.suggested, partner, one.split or "", ""
        for group in self.duplicates:
            first, *others = group.images
            for copy in others:
                label, split = copy.label or "", copy.split or ""
                yield copy.path, DUPLICATE, copy.kind, f"{copy.cosine:.4f}", label, "", first.path, split, ""
        for far in self.outliers:
            partner = far.neighbors[0].path if far.neighbors else ""
            why = "; ".join(far.why)
            yield far.path, OUTLIER, why, f"{far.score:.2f}", far.label or "", "", partner, far.split or "", ""

    def write_csv(self, file: Path) -> None:
        """Write ``clean.csv``, with an empty column ``decision`` to fill in."""
        write_table(file, COLUMNS, (tuple(row.values()) for row in self.rows))

    def to_pandas(self) -> Any:
        """Return the table as a pandas ``DataFrame``; pandas must be installed."""
        import pandas

        frame = pandas.DataFrame(self.rows, columns=COLUMNS)
        frame["score"] = frame["score"].astype(float)
        return frame

    def _repr_html_(self) -> str:
        return cleaning_html(self)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints: counts, and what each finding is."""
        kinds = Counter(copy.kind for group in self.duplicates for copy in group.images[1:])
        return {
            "data": str(self.source.root),
            "images": len(self.source),
            "classes": len(self.source.classes),
            "labels_expected_wrong": round(self.expected_errors, 1),
            "suspects": len(self.suspects),
            "duplicates": {"groups": len(self.duplicates), "extra": sum(kinds.values()), **kinds},
            "conflicts": sum(group.conflicts for group in self.duplicates),
            "leaks": sum(group.leaks for group in self.duplicates),
            "outliers": len(self.outliers),
            "skipped": len(self.skipped),
            "notes": list(self.notes),
        }


def label_of(source: ImageSource, image: int) -> str | None:
    """Return the label of an image; None if it has none."""
    return None if source.labels is None or source.labels[image] < 0 else source.classes[source.labels[image]]


def split_of(source: ImageSource, image: int) -> str | None:
    """Return the split of an image; None if the source has no splits."""
    return None if source.splits is None else str(source.splits[image])


def find_neighbors(
    source: ImageSource, nearest: NDArray[np.int64], cosines: Floats, image: int, most: int = NEIGHBORS
) -> tuple[Neighbor, ...]:
    """Return the images most like one, with their labels."""
    pairs = zip(nearest[image, :most].tolist(), cosines[image, :most].tolist(), strict=True)
    return tuple(Neighbor(i, str(source.paths[i]), label_of(source, i), cosine) for i, cosine in pairs)


def read_findings(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a table that a person may have edited in a spreadsheet; a ``FineSightError`` says what it lacks."""
    try:
        rows = read_table(file)
    except OSError as error:
        raise FineSightError(f"{file} cannot be read: {error.strerror}.") from error
    except csv.Error as error:
        raise FineSightError(f"{file} is no table: {error}.") from error
    if not rows:
        raise FineSightError(f"{file} has no line below its header: there is nothing to apply.")
    missing = [name for name in columns if name not in rows[0]]
    if missing:
        raise FineSightError(f"{file} has no column {missing[0]!r}: it is no clean.csv of `finesight clean`.")
    return rows
