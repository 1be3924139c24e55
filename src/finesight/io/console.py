"""Words for people go to stderr, so that ``--json`` leaves stdout to scripts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from finesight.io.terminal import safe_text

TABLE_WIDTH = 200  # of a table that goes to a file


class SafeConsole(Console):
    """A console that writes out the control characters of what it is given."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        super().print(*(safe_text(one) if isinstance(one, str) else one for one in objects), **options)


console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table to standard output: the first column is text, the others are numbers. Files get it uncut."""
    table = Table(box=box.SIMPLE_HEAD)
    for n, key in enumerate(rows[0]):
        table.add_column(key, justify="right" if n else "left", no_wrap=not n)
    for row in rows:
        table.add_row(
            *(f"{value:.2f}" if isinstance(value, float) else safe_text(str(value)) for value in row.values())
        )
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)


def format_count(n: float, one: str, many: str = "") -> str:
    """Return a count with its noun: 1 image, 2,000 images, 2.5 minutes."""
    return f"{n:,.15g} {one if n == 1 else many or one + 's'}"


def without_password(address: str | Path) -> str:
    """Return an address without the user and the password in it; a path is returned as it is."""
    return re.sub(r"^([a-z0-9+.-]+://)[^/]*@", r"\1", str(address))


def printable(text: str) -> str:
    """Return text that can be printed and sent as UTF-8; file names may hold bytes that cannot."""
    return text.encode("utf-8", "replace").decode()


def printable_line(line: str) -> str:
    """Return a line that can be printed: file names may hold line breaks, and bytes that are no text."""
    return line if line.isprintable() else repr(line)[1:-1]
