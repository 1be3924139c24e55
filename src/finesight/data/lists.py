"""Lists of images in a text or CSV file."""

from __future__ import annotations

import codecs
import csv
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.listing import not_an_image_suffix
from finesight.errors import FineSightError

_PATH_COLUMNS = ("path", "file", "filename", "image")
_LABEL_COLUMNS = ("label", "class")
_SPLITS = {"train": "train", "training": "train", "test": "test", "val": "val", "validation": "val"}
_EXAMPLES = 3  # bad lines shown in an error


@dataclass
class Rows:
    """One entry per usable line; ``splits`` is empty when the list has none, so is an unknown label."""

    paths: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_list(file: Path) -> Rows:
    """Plain text with one path per line; a table with a ``path`` column and maybe ``label`` and ``split``; or
    a table without header, ``path,label``. Paths are relative to the list's folder or absolute."""
    lines = [line for line in enumerate(_text(file).split("\n"), start=1) if line[1].strip()]
    if not lines:
        raise FineSightError(f"{file} is empty; write one image path per line into it")
    first = lines[0][1].strip()
    columns, delimiter = _header(first), _delimiter(first)
    if columns:
        lines, delimiter = lines[1:], delimiter or ","
    elif delimiter and not_an_image_suffix(first):
        columns = ["path", "label"]
    else:
        columns, delimiter = ["path"], ""  # a comma in such a line belongs to a file's name
    rows, bad = Rows(), []
    for number, line in lines:
        if problem := _add(rows, _cells(line, delimiter), columns):
            bad.append(f"line {number}: {problem}")
    if bad:
        raise FineSightError(_bad_lines(file, bad, len(lines)))
    if not rows.paths:
        raise FineSightError(f"{file} has a header but no image; write one image path per line into it")
    return _test_or_validation(rows)


def _text(file: Path) -> str:
    data = file.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # a spreadsheet's "Unicode text"
        data = data.decode("utf-16", "replace").encode()
    if b"\0" in data:
        raise FineSightError(f"{file} is neither a folder of images nor a text list of them; give --data one")
    # surrogateescape keeps names that are not UTF-8 as the file system has them
    return data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


def _header(line: str) -> list[str]:
    """The columns by our names, empty for those not needed; nothing when the line is not a header."""
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
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _add(rows: Rows, cells: list[str], columns: list[str]) -> str:
    """Take one line in, or say what is wrong with it."""
    if len(cells) != len(columns):
        return f"{len(cells)} column{'s' * (len(cells) != 1)} where {len(columns)} belong"
    row = dict(zip(columns, cells, strict=True))
    if not row["path"]:
        return "no path"
    if reason := not_an_image_suffix(row["path"]):
        return f"{row['path'][:80]!r} is {reason}"
    if "split" in row:
        split = _SPLITS.get(row["split"].lower())
        if split is None:
            return f"split is {row['split']!r}, not train or test"
        rows.splits.append(split)
    rows.paths.append(row["path"])
    rows.labels.append(row.get("label", ""))
    return ""


def _bad_lines(file: Path, bad: list[str], total: int) -> str:
    count = len(bad)
    if len(bad) > _EXAMPLES:
        bad = [*bad[:_EXAMPLES], f"and {len(bad) - _EXAMPLES} more"]
    return (
        f"{count} of {total} lines of {file} cannot be used: {'; '.join(bad)}. Write one image path per "
        "line, or a table with the columns path, label, split"
    )


def _test_or_validation(rows: Rows) -> Rows:
    """Validation images are the test split when there is no other; else they are left out."""
    if "val" not in rows.splits:
        return rows
    if "test" not in rows.splits:
        rows.splits = ["test" if split == "val" else split for split in rows.splits]
        return rows
    kept = Rows()
    for path, label, split in zip(rows.paths, rows.labels, rows.splits, strict=True):
        if split == "val":
            kept.skipped.append((path, "in the validation split; the list has a test split"))
            continue
        kept.paths.append(path)
        kept.labels.append(label)
        kept.splits.append(split)
    return kept
