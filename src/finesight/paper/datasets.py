"""The three datasets of the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finesight.data.layouts.layout import LAYOUTS, OfficialCounts, official_counts
from finesight.data.named_path import split_named_path
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError


@dataclass(frozen=True)
class PaperDataset:
    """A column of the paper's tables."""

    kind: str  # of its source
    column: str  # in the paper's tables
    name: str
    runs: str  # folder of its runs

    @property
    def folder(self) -> str:
        """The official name of its folder, whatever it is called on this machine."""
        return LAYOUTS[self.kind].trees[0].folder

    @property
    def official(self) -> OfficialCounts:
        """The number of images and classes, as published."""
        return official_counts(self.kind) or OfficialCounts(0, 0, 0)

    @property
    def classes(self) -> int:
        return self.official.classes


CUB = PaperDataset("cub", "CUB", "CUB-200-2011", "birds")
DATASETS = {
    dataset.kind: dataset
    for dataset in (
        CUB,
        PaperDataset("cars", "Cars", "Stanford Cars", "cars"),
        PaperDataset("aircraft", "Aircraft", "FGVC Aircraft", "aircraft"),
    )
}


def open_dataset(dataset: PaperDataset, data: Path) -> ImageSource:
    """Return its images; raise a ``FineSightError`` that says what is there if it is another dataset."""
    source = open_source(data)
    if source.kind != dataset.kind:
        raise FineSightError(f"The bench needs {dataset.folder} in its official layout; this is {source.describe()}")
    return source


def recognize_datasets(data: Sequence[str]) -> dict[str, Path]:
    """Return which dataset each of ``data`` is: kind -> its folder."""
    folders: dict[str, Path] = {}
    for text in data:
        source = open_source(text)
        if source.kind not in DATASETS:
            names = ", ".join(dataset.name for dataset in DATASETS.values())
            raise FineSightError(f"The paper's tables are of {names}; --data {text} is {source.describe()}")
        if source.kind in folders:
            raise FineSightError(f"--data gives {DATASETS[source.kind].name} twice: {folders[source.kind]} and {text}.")
        named, plain = split_named_path(text)
        recognized = named is not None and open_source(plain).kind == source.kind  # commands are shorter without cars:
        folders[source.kind] = Path(plain if recognized else text)
    return folders
