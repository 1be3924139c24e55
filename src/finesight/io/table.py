"""CSV files for people and spreadsheets: written whole, and never with a cell that a spreadsheet would run.

A text that begins like a formula (``=cmd|…``; a file may have such a name) gets an apostrophe before it, as in the
page's own export. Reading takes it away again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from finesight.io.atomic import atomic_path

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a text that a spreadsheet runs begins with
GUARD = "'"
SEPARATORS = ",;\t"


def guard(value: Any) -> Any:
    """Return what is written for a cell: a text that would be run gets an apostrophe, numbers stay as they are.

    A text that looks guarded already gets one more, so that ``unguard`` always returns the text itself.
    """
    if not isinstance(value, str) or not value.lstrip(GUARD).startswith(FORMULA) or _is_number(value):
        return value
    return GUARD + value


def unguard(text: str) -> str:
    """Return the text of which ``guard`` made this one."""
    is_guarded = text.startswith(GUARD) and text.lstrip(GUARD).startswith(FORMULA)
    return text[1:] if is_guarded else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_rows(stream: TextIO, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a header and rows into a stream that was opened by ``open_table``, or that is in memory."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([guard(name) for name in header])
    writer.writerows([guard(value) for value in row] for row in rows)


def write_table(file: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file whole or not at all; names that are not UTF-8 keep their bytes. Raises ``WriteError``."""
    with atomic_path(file) as scratch, open_table(scratch) as stream:
        write_rows(stream, header, rows)


def open_table(file: Path) -> TextIO:
    """Open a CSV file for ``write_rows``."""
    return file.open("w", newline="", encoding="utf-8", errors="surrogateescape")


def table_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as the text of a CSV file."""
    text = io.StringIO()
    write_rows(text, header, rows)
    return text.getvalue()


def records_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows that all have the keys of the first one as the text of a CSV file."""
    return table_text(list(rows[0]), ([row.get(name, "") for name in rows[0]] for row in rows))


def read_table(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, also as a spreadsheet may have saved it: other separators, a byte-order mark.

    Cells that a short line lacks are empty texts. Raises ``OSError`` if it cannot be read, ``csv.Error`` if it is none.
    """
    text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
    separator = max(SEPARATORS, key=text.split("\n", 1)[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, restval="")
    return [{unguard(k): unguard(v) for k, v in row.items() if k is not None} for row in reader]
