"""The paper's Tables 1 to 3 with our numbers beside its own. A cell that was not run stays empty."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finesight.paper.marks import Setting, setting_of
from finesight.paper.published import TABLE_1, TABLE_2, TABLE_3, paper_value
from finesight.paper.results import Results
from finesight.paper.systems import ALL_SYSTEMS, System
from finesight.paper.table_datasets import DATASETS, PaperDataset

EMPTY = "–"
COLLAPSE = "collapse"
BATCHES = {"bs32": "32", "bs128": "128"}  # the paper's two, in its Table 2
PERCENTS = ("100", "50", "20")

Found = Mapping[str, Results]  # kind of dataset -> its results


@dataclass(frozen=True)
class Column:
    """A metric: where our results have it, and each of the paper's numbers that stand beside it."""

    key: str
    words: str
    ours: tuple[str, ...]
    paper: dict[str, tuple[str, ...]]  # name -> keys in the paper's row, {} being the dataset's column
    unit: float = 1.0  # ours are divided by it
    shared: bool = True  # does it hold for a network that another's training gave?


@dataclass(frozen=True)
class PaperTable:
    """Rows and columns of one of the paper's tables."""

    name: str
    title: str
    label: str
    head: str  # what the parts of a cell are
    rows: dict[str, str]  # our system -> the paper's row
    columns: tuple[Column, ...]

    @property
    def systems(self) -> dict[str, System]:
        return {name: ALL_SYSTEMS[name] for name in self.rows}


def _linear(percent: str, top: str) -> Column:
    words, path = f"{top[:3]}-{top[3]}, {percent} %", ("{}", "classification", percent, top)
    return Column(f"linear{percent}_{top}", words, ("linear", percent, top), {"": path})


def _retrieval(key: str, words: str) -> Column:
    return Column(key, words, ("retrieval", key), {"": ("{}", "retrieval", key)})


def _at_each_batch(*path: str) -> dict[str, tuple[str, ...]]:
    return {batch: (*path, batch) for batch in BATCHES}


OURS = {"lcr": "Ours", "lcr-paper": "Ours"}
TABLES: dict[str, PaperTable] = {
    "table1": PaperTable(
        name="table1",
        title="Table 1: linear classification by share of the labels, and retrieval",
        label=TABLE_1,
        head="the paper / ours",
        rows={"frozen": "ResNet-50", "moco-v2": "MoCo v2", **OURS},
        columns=(
            *(_linear(percent, top) for percent in PERCENTS for top in ("top1", "top5")),
            *(_retrieval(key, words) for key, words in {"rank1": "rank-1", "rank5": "rank-5", "mAP": "mAP"}.items()),
        ),
    ),
    "table2": PaperTable(
        name="table2",
        title="Table 2: other frameworks, by linear classification, and what a training takes",
        label=TABLE_2,
        head="the paper at batch 32 / at batch 128 / ours; the paper's hours and memory: 4 V100, on CUB",
        rows={
            **{"supervised": "Supervised", "dino": "DINO", "simclr": "SimCLR", "byol": "BYOL", "simsiam": "SimSiam"},
            **{"moco-v2": "MoCo v2", "barlow-twins": "BarlowTwins", "vicreg": "VICReg", **OURS},
            **{"byol-lcr": "BYOL+Ours"},
        },
        columns=(
            Column("top1", "top-1", ("linear", "100", "top1"), {"": ("{}", "top1"), **_at_each_batch("{}", "top1")}),
            Column("hours", "hours", ("seconds",), _at_each_batch("{}_time_hours"), unit=3600, shared=False),
            Column(
                "memory",
                "peak memory (GB)",
                ("peak_memory_mb",),
                _at_each_batch("{}_peak_GPU_memory_GB"),
                unit=1000 / 1.048576,
                shared=False,
            ),
        ),
    ),
    "table3": PaperTable(
        name="table3",
        title="Table 3: other ways to look at the object",
        label=TABLE_3,
        head="the paper / ours",
        rows={
            **{"moco-v2": "MoCo v2", "moco-bilinear": "MoCo v2-Bilinear", "sam-ssl": "SAM-SSL"},
            **{"sam-ssl-bilinear": "SAM-SSL-Bilinear", "dilo": "DiLo", "cvsa": "CVSA", "lewel": "LEWEL"},
            **{"contrastive-crop": "ContrastiveCrop", "lcr-dual-pooling": "Ours-DualPooling"},
            **{"multitask": "Ours-MultiTask", **OURS, "lcr+contrastive-crop": "Ours+ContrastiveCrop"},
        },
        columns=(
            Column("top1", "top-1", ("linear", "100", "top1"), {"": ("{}", "top1")}),
            Column("rank1", "rank-1", ("retrieval", "rank1"), {"": ("{}", "rank1")}),
        ),
    ),
}


# --- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Mean and sample deviation over seeds."""

    mean: float
    sd: float | None
    n: int

    def words(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.sd is None else f" ± {self.sd:.2f}")


@dataclass(frozen=True)
class Cell:
    """A row of a table on one dataset."""

    dataset: PaperDataset
    system: str
    row: str
    paper: dict[str, dict[str, float | str | None]]  # column -> which of the paper's -> number
    scores: dict[str, Score | None]  # column -> ours
    setting: Setting | None  # None: not run
    collapsed: int = 0  # seeds

    def as_json(self) -> dict[str, Any]:
        paper = {key: found[""] if found.keys() == {""} else found for key, found in self.paper.items()}
        ours = None
        if self.setting is not None:
            scores = {key: None if score is None else vars(score) for key, score in self.scores.items()}
            ours = scores | {"collapsed": self.collapsed, "setting": self.setting.as_json()}
        return {"row": self.row, "paper": paper, "ours": ours}


def cells(
    table: PaperTable, found: Found, systems: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> list[Cell]:
    """Every row of the table on every dataset, or those of ``systems`` by ``seeds``."""
    return [
        _cell(table, dataset, name, _chosen(found.get(kind, {}).get(name, {}), seeds))
        for kind, dataset in DATASETS.items()
        for name in table.rows
        if not systems or name in systems
    ]


def _chosen(results: Mapping[int, dict[str, Any]], seeds: Sequence[int] | None) -> list[dict[str, Any]]:
    return [results[seed] for seed in sorted(results) if seeds is None or seed in seeds]


def _cell(table: PaperTable, dataset: PaperDataset, system: str, results: Sequence[dict[str, Any]]) -> Cell:
    paper = {
        column.key: {
            name: paper_value(table.label, table.rows[system], tuple(key.replace("{}", dataset.column) for key in path))
            for name, path in column.paper.items()
        }
        for column in table.columns
    }
    return Cell(
        dataset=dataset,
        system=system,
        row=table.rows[system],
        paper={key: _without_gaps(found) for key, found in paper.items()},
        scores={column.key: _score(column, results) for column in table.columns},
        setting=setting_of(dataset, system, results) if results else None,
        collapsed=sum(bool((result.get("health") or {}).get("collapsed")) for result in results),
    )


def _without_gaps(found: dict[str, float | str | None]) -> dict[str, float | str | None]:
    """Only the forms of a number that a row has; a row that has none of them keeps the first as a gap."""
    known = {name for name, value in found.items() if value is not None} or {next(iter(found))}
    return {name: value for name, value in found.items() if name in known}


def _score(column: Column, results: Sequence[dict[str, Any]]) -> Score | None:
    numbers = []
    for result in results:
        if not column.shared and not _own_training(result):
            continue
        here: Any = result
        for key in column.ours:
            here = here.get(key) if isinstance(here, dict) else None
        if here is not None:
            numbers.append(float(here) / column.unit)
    if not numbers:
        return None
    return Score(float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None, len(numbers))


def _own_training(result: Mapping[str, Any]) -> bool:
    """What a training took is not known of a network that another's gave, nor of one that nothing trained."""
    return result["trained_as"] == result["network"] and bool(result["seconds"])


# --- for people -------------------------------------------------------------------------------------------------------


def marks(found: Sequence[Cell]) -> dict[str, Setting]:
    """A letter for every setting: what was made alike has the same, with all its seeds, dates and machines."""
    settings: dict[Any, Setting] = {}
    for cell in found:
        if cell.setting is not None:
            before = settings.get(cell.setting.key)
            settings[cell.setting.key] = cell.setting if before is None else before.joined(cell.setting)
    return dict(zip(_letters(len(settings)), settings.values(), strict=True))


def _letters(count: int) -> list[str]:
    """a … z, aa, ab …"""
    singles = list(string.ascii_lowercase)
    return (singles + [a + b for a in singles for b in singles])[:count]


def table_rows(table: PaperTable, found: Sequence[Cell]) -> list[dict[str, str]]:
    """One a dataset and row: every cell the paper's and ours, the last column who made ours."""
    letters = {setting.key: letter for letter, setting in marks(found).items()}
    rows = []
    for cell in found:
        row = {"": f"{cell.dataset.column}: {cell.row}", "ours is": cell.system}
        row |= {column.words: _text(cell, column.key) for column in table.columns}
        if cell.setting is None:
            row["made"] = EMPTY
        else:
            row["made"] = f"({letters[cell.setting.key]}) {_count(cell.setting)}".rstrip()
        rows.append(row)
    return rows


def _count(setting: Setting) -> str:
    """Of the seeds; a network that nothing trained has none."""
    count = len(setting.seeds)
    return ("1 seed" if count == 1 else f"{count} seeds") if setting.trained else ""


def _text(cell: Cell, column: str) -> str:
    paper = [EMPTY if value is None else _printed(value) for value in cell.paper[column].values()]
    return " / ".join([*paper, _ours(cell, column)])


def _printed(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _ours(cell: Cell, column: str) -> str:
    """A run that collapsed says so, with what was measured of it."""
    score = cell.scores[column]
    if score is None:
        return EMPTY
    if not cell.collapsed or cell.setting is None or column in ("hours", "memory"):
        return score.words()
    seeds = len(cell.setting.seeds)
    which = "" if cell.collapsed == seeds else f", {cell.collapsed} of {seeds} seeds"
    return f"{COLLAPSE}{which} ({score.words()})"


def notes(found: Sequence[Cell]) -> list[str]:
    """What stands below a table: of every mark, how its numbers were made and what that leaves to compare."""
    return [f"({letter}) {setting.words()}" for letter, setting in marks(found).items()]


def as_json(table: PaperTable, profile: str, found: Sequence[Cell]) -> dict[str, Any]:
    """rows -> dataset -> the paper's numbers and ours."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in found:
        rows.setdefault(cell.system, {})[cell.dataset.column] = cell.as_json()
    return {"table": table.name, "profile": profile, "rows": rows}
