"""Read lists of images from a text or CSV file."""

from __future__ import annotations

import codecs
import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Any

from finesight.data.listing import not_an_image_suffix
from finesight.data.places import image_column
from finesight.errors import FineSightError
from finesight.io.frames import read_arrow_table
from finesight.io.table import unguard

TABLES = (".parquet", ".arrow", ".feather")

_PATH_COLUMNS = ("path", "file", "filename", "image")
_LABEL_COLUMNS = ("label", "class")
_SPLITS = {"train": "train", "training": "train", "test": "test", "val": "val", "validation": "val"}
_EXAMPLES = 3  # bad lines shown in an error


@dataclass
class ListedImages:
    """The images of a list. ``splits`` is empty if the list has none; an unknown label is an empty text."""

    paths: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_list(file: Path) -> ListedImages:
    """Read a list: one path per line, or a table with a ``path`` column and maybe ``label`` and ``split``, or a table
    ``path,label`` without header. A ``FineSightError`` shows the first lines that cannot be used.
    """
    lines = _lines(file)
    number, first = next(lines, (0, ""))
    if not first:
        raise FineSightError(f"{file} is empty; write one image path per line into it")
    columns, delimiter = _header(first.strip()), _delimiter(first.strip())
    if columns:
        delimiter = delimiter or ","
    else:
        lines = chain([(number, first)], lines)
        if delimiter and not_an_image_suffix(first.strip()):
            columns = ["path", "label"]
        else:
            columns, delimiter = ["path"], ""  # a comma in such a line belongs to a file's name
    rows = _rows(file, lines, columns, delimiter)
    if not rows.paths:
        raise FineSightError(f"{file} has a header but no image; write one image path per line into it")
    return test_or_validation(rows)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not blank. The whole text is never in memory."""
    with open(file, "rb") as start:
        wide = start.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # a spreadsheet's "Unicode text"
    # surrogateescape keeps names that are not UTF-8 as the file system has them
    encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", "surrogateescape")
    with open(file, encoding=encoding, errors=errors) as text:
        for number, line in enumerate(text, start=1):
            if "\0" in line:
                raise FineSightError(f"{file} is neither a folder of images nor a text list of them; give --data one")
            if not line.isspace():
                yield number, line.rstrip("\n")


def _rows(file: Path, lines: Iterable[tuple[int, str]], columns: list[str], delimiter: str) -> ListedImages:
    rows, bad, total, unusable = ListedImages(), [], 0, 0
    where = {name: i for i, name in enumerate(columns)}
    for total, (number, line) in enumerate(lines, start=1):  # noqa: B007
        if problem := _add(rows, _cells(line, delimiter), len(columns), where):
            unusable += 1
            if unusable <= _EXAMPLES:
                bad.append(f"line {number}: {problem}")
    if bad:
        raise FineSightError(_bad_lines(file, bad, unusable, total))
    return rows


def _header(line: str) -> list[str]:
    """Return our names of the columns, empty for those not needed; an empty list if the line is not a header."""
    names = [cell.lower() for cell in _cells(line, _delimiter(line))]
    path = next((name for name in _PATH_COLUMNS if name in names), None)
    if path is None:
        return []
    label = next((name for name in _LABEL_COLUMNS if name in names), None)
    known = {path: "path", label: "label", "split": "split"}
    return [known.get(name, "") for name in names]


def _delimiter(line: str) -> str:
    return next((mark for mark in "\t,;" if mark in line), "")


def _cells(line: str, delimiter: str) -> list[str]:
    if not delimiter:
        return [line.strip()]
    if '"' not in line:  # a reader for each line takes ten times as long
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    except csv.Error:  # a cell of more than 128 KB is none
        return []


def _add(rows: ListedImages, cells: list[str], columns: int, where: dict[str, int], *, guarded: bool = True) -> str:
    """Add one line to ``rows``, or return what is wrong with it."""
    plain = unguard if guarded else str
    if len(cells) != columns:
        return f"{len(cells)} column{'s' * (len(cells) != 1)} where {columns} belong"
    path = cells[where["path"]] if columns == 1 else plain(cells[where["path"]])
    if not path:
        return "no path"
    if reason := not_an_image_suffix(path):
        return f"{path[:80]!r} is {reason}"
    if "split" in where:
        given = cells[where["split"]]
        split = _SPLITS.get(given.lower())
        if split is None:
            return f"split is {given!r}, not train or test"
        rows.splits.append(split)
    rows.paths.append(path)
    rows.labels.append(sys.intern(plain(cells[where["label"]])) if "label" in where else "")  # a name is kept once
    return ""


def _bad_lines(file: Path, bad: list[str], count: int, total: int, what: str = "lines") -> str:
    if count > len(bad):
        bad = [*bad, f"and {count - len(bad)} more"]
    return (
        f"{count} of {total} {what} of {file} cannot be used: {'; '.join(bad)}. Write one image path per "
        "line, or a table with the columns path, label, split"
    )


def known_split(given: str, file: Path) -> str:
    """Return train, test or val for what a table says; raise ``FineSightError`` for anything else."""
    if (split := _SPLITS.get(given.lower())) is None:
        raise FineSightError(f"A split of {file} is {given!r}, not train or test.")
    return split


def is_list_table(file: Path) -> bool:
    """Return whether a file is a Parquet or Arrow table of paths, without the images themselves."""
    if file.suffix.lower() not in TABLES:
        return False
    try:
        schema = _table_schema(file)
    except (OSError, ValueError):  # who reads the images says what is wrong with it
        return file.suffix.lower() != ".parquet"
    return image_column(schema) is None and bool(_table_columns(schema.names)[0])


def read_list_table(file: Path) -> ListedImages:
    """Read a list from a Parquet or Arrow table with the columns of a CSV list; ``FineSightError`` if that fails."""
    try:
        path, label, split = _table_columns(_table_schema(file).names)
        wanted = {"path": path, "label": label, "split": split}
        names = {name: column for name, column in wanted.items() if column}
        table = read_arrow_table(file, list(names.values()))
        cells = {name: table.column(column).to_pylist() for name, column in names.items()}
    except (OSError, ValueError) as error:
        raise FineSightError(f"{file} cannot be read as a table of images: {error}") from error
    rows, bad, unusable = ListedImages(), [], 0
    where = {name: place for place, name in enumerate(cells)}
    for number, values in enumerate(zip(*cells.values(), strict=True)):
        texts = ["" if value is None else str(value) for value in values]
        if problem := _add(rows, texts, len(texts), where, guarded=False):
            unusable += 1
            if unusable <= _EXAMPLES:
                bad.append(f"row {number}: {problem}")
    if bad:
        raise FineSightError(_bad_lines(file, bad, unusable, table.num_rows, "rows"))
    if not rows.paths:
        raise FineSightError(f"{file} lists no image.")
    return test_or_validation(rows)


def _table_schema(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix.lower() == ".parquet":
        return pq.read_schema(file)
    with pa.OSFile(str(file)) as stream:
        try:
            return pa.ipc.open_file(stream).schema
        except pa.ArrowInvalid:
            stream.seek(0)
            return pa.ipc.open_stream(stream).schema


def _table_columns(names: list[str]) -> tuple[str, str, str]:
    lower = {name.lower(): name for name in names}

    def first(wanted: tuple[str, ...]) -> str:
        return next((lower[name] for name in wanted if name in lower), "")

    return first(_PATH_COLUMNS), first(_LABEL_COLUMNS), first(("split",))


def test_or_validation(rows: ListedImages) -> ListedImages:
    """Make validation images the test split if there is no other; else leave them out."""
    if "val" not in rows.splits:
        return rows
    if "test" not in rows.splits:
        rows.splits = ["test" if split == "val" else split for split in rows.splits]
        return rows
    used = [split != "val" for split in rows.splits]
    paths, labels, splits = (list(compress(column, used)) for column in (rows.paths, rows.labels, rows.splits))
    reason = "in the validation split; the list has a test split"
    skipped = [(path, reason) for path, kept in zip(rows.paths, used, strict=True) if not kept]
    return ListedImages(paths, labels, splits, skipped)
