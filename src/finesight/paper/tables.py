"""The paper's Tables 1 to 3 with our numbers beside its own. A cell that was not run stays empty."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finesight.io.console import format_count
from finesight.paper.datasets import DATASETS, PaperDataset
from finesight.paper.footnotes import Footnote, make_footnote
from finesight.paper.published import TABLE_1, TABLE_2, TABLE_3, look_up, paper_results
from finesight.paper.rows import MORE_ROWS
from finesight.paper.scores import mean_and_std
from finesight.paper.selection import find_row
from finesight.paper.store import Results

EMPTY = "–"
BATCHES = ("bs32", "bs128")  # the paper's two, in its Table 2
PERCENTS = ("100", "50", "20")

DatasetResults = Mapping[str, Results]  # kind of dataset -> its results


@dataclass(frozen=True)
class Column:
    """A metric: where our results have it, and the paper's numbers that stand beside it."""

    key: str
    words: str
    ours: tuple[str, ...]
    paper: dict[str, tuple[str, ...]]  # name -> keys in the paper's row, {} being the dataset's column
    unit: float = 1.0  # ours are divided by it
    shared: bool = True  # whether it holds for a training that another's training gave


@dataclass(frozen=True)
class PaperTable:
    """Rows and columns of one of the paper's tables."""

    name: str
    title: str
    label: str
    more: bool  # whether controls of ours stand among them
    head: str  # what the parts of a cell are
    rows: dict[str, str]  # our row -> the paper's
    columns: tuple[Column, ...]

    @property
    def all_rows(self) -> dict[str, str]:
        """Our rows, and behind each those that the paper does not have: the paper's name, or a label of ours."""
        rows: dict[str, str] = {}
        for name, paper in self.rows.items():
            rows[name] = paper
            if self.more:
                rows |= {more: row.label for more, row in MORE_ROWS.get(name, {}).items() if more not in self.rows}
        return rows


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
        more=False,
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
        more=True,
        title="Table 2: other frameworks, by linear classification and retrieval, and what a training takes",
        label=TABLE_2,
        head="the paper at batch 32 / at batch 128 / ours; the paper's hours and memory: 4 V100, on CUB",
        rows={
            **{"supervised": "Supervised", "dino": "DINO", "simclr": "SimCLR", "byol": "BYOL", "simsiam": "SimSiam"},
            **{"moco-v2": "MoCo v2", "barlow-twins": "BarlowTwins", "vicreg": "VICReg", **OURS},
            **{"byol-lcr": "BYOL+Ours"},
        },
        columns=(
            Column("top1", "top-1", ("linear", "100", "top1"), {"": ("{}", "top1"), **_at_each_batch("{}", "top1")}),
            Column("rank1", "rank-1", ("retrieval", "rank1"), {"": ("{}", "retrieval", "rank1")}),
            Column("mAP", "mAP", ("retrieval", "mAP"), {"": ("{}", "retrieval", "mAP")}),
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
        more=True,
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
class Cell:
    """A row of a table on one dataset."""

    dataset: PaperDataset
    name: str  # of our row
    row: str  # the paper's
    paper: dict[str, dict[str, float | str | None]]  # column -> which of the paper's numbers -> number
    numbers: dict[str, list[float]]  # column -> ours, of every seed that has it
    footnote: Footnote | None  # None: not run
    collapsed: int = 0  # seeds

    def as_json(self) -> dict[str, Any]:
        paper = {key: numbers[""] if numbers.keys() == {""} else numbers for key, numbers in self.paper.items()}
        ours: dict[str, Any] | None = None
        if self.footnote is not None:
            scores = {key: summarize(numbers) for key, numbers in self.numbers.items()}
            ours = {**scores, "collapsed": self.collapsed, "setting": self.footnote.as_json()}
        return {"row": self.row, "paper": paper, "ours": ours}


def summarize(numbers: Sequence[float]) -> dict[str, Any] | None:
    """Return mean, sample deviation and number of seeds; None without any."""
    if not numbers:
        return None
    sd = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return {"mean": float(np.mean(numbers)), "sd": sd, "n": len(numbers)}


def table_cells(
    table: PaperTable, results: DatasetResults, names: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> list[Cell]:
    """Return every row of the table, or those of ``names``, on every dataset by ``seeds``."""
    shown = table.all_rows
    rows = shown | {name: find_row(name).paper or name for name in names if name not in shown}
    cells = []
    for kind, dataset in DATASETS.items():
        for name, row in rows.items():
            known = results.get(kind, {}).get(name, {})
            if name in names if names else known or name in table.rows:
                chosen = [known[seed] for seed in sorted(known) if seeds is None or seed in seeds]
                cell = Cell(
                    dataset=dataset,
                    name=name,
                    row=row,
                    paper={column.key: _paper_numbers(table.label, row, column, dataset) for column in table.columns},
                    numbers={column.key: _numbers(column, chosen) for column in table.columns},
                    footnote=make_footnote(dataset, name, chosen) if chosen else None,
                    collapsed=sum(bool(look_up(result, ("health", "collapsed"))) for result in chosen),
                )
                cells.append(cell)
    return cells


def _paper_numbers(label: str, row: str, column: Column, dataset: PaperDataset) -> dict[str, float | str | None]:
    """Return the forms of a number that the paper's row has; the first as a gap where it has none."""
    numbers = {}
    for name, path in column.paper.items():
        place = [label, row, *(key.replace("{}", dataset.column) for key in path)]
        value = look_up(paper_results(), place)
        numbers[name] = None if isinstance(value, dict) else value
    known = {name: value for name, value in numbers.items() if value is not None}
    return known or {next(iter(numbers)): None}


def _numbers(column: Column, results: Sequence[dict[str, Any]]) -> list[float]:
    """Return ours of every seed; of a training that another's training gave, or nothing trained, no time is known."""
    timed = [result for result in results if result["trained_as"] == result["network"] and result["seconds"]]
    values = (look_up(result, column.ours) for result in (results if column.shared else timed))
    return [float(value) / column.unit for value in values if value is not None]


# --- for people -------------------------------------------------------------------------------------------------------


def footnotes(cells: Sequence[Cell]) -> dict[str, Footnote]:
    """Return a letter for every setting; rows made alike share one, with all their seeds, dates and machines."""
    notes: dict[Any, Footnote] = {}
    for cell in cells:
        if (note := cell.footnote) is not None:
            notes[note.key] = notes[note.key].join(note) if note.key in notes else note
    letters = [a + b for a in ("", *string.ascii_lowercase) for b in string.ascii_lowercase]  # a … z, aa, ab …
    return dict(zip(letters, notes.values(), strict=False))


def table_rows(
    table: PaperTable, cells: Sequence[Cell], known: Mapping[str, Footnote] | None = None
) -> list[dict[str, str]]:
    """Return a line for every dataset and row: in every cell the paper's number and ours, in the last the footnote.

    ``known`` are the footnotes by their letters, if these stand below several tables.
    """
    letters = {note.key: letter for letter, note in (known or footnotes(cells)).items()}
    lines = []
    for cell in cells:
        line = {"": f"{cell.dataset.column}: {cell.row}", "ours is": cell.name}
        line |= {column.words: _text(cell, column.key) for column in table.columns}
        line["made"] = EMPTY
        if (note := cell.footnote) is not None:
            seeds = format_count(len(note.seeds), "seed") if note.trained else ""
            line["made"] = f"({letters[note.key]}) {seeds}".rstrip()
        lines.append(line)
    return lines


def _text(cell: Cell, column: str) -> str:
    """Format the paper's numbers and ours; after a collapse, say so beside what was measured."""
    paper = [
        f"{value:.2f}" if isinstance(value, float | int) else value or EMPTY for value in cell.paper[column].values()
    ]
    ours = mean_and_std(cell.numbers[column])
    if cell.numbers[column] and cell.collapsed and cell.footnote is not None and column not in ("hours", "memory"):
        seeds = len(cell.footnote.seeds)
        which = "" if cell.collapsed == seeds else f", {cell.collapsed} of {seeds} seeds"
        ours = f"collapse{which} ({ours})"
    return " / ".join([*paper, ours])


def notes(cells: Sequence[Cell]) -> list[str]:
    """Return what stands below a table: of every footnote, how its numbers were made and what not to compare."""
    return [f"({letter}) {note.words()}" for letter, note in footnotes(cells).items()]


def as_json(table: PaperTable, profile: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return rows -> dataset -> the paper's numbers and ours."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        rows.setdefault(cell.name, {})[cell.dataset.column] = cell.as_json()
    return {"table": table.name, "profile": profile, "rows": rows}
