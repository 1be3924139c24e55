"""Words for people go to stderr, so that ``--json`` leaves stdout to scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")

console = Console(stderr=True, highlight=False, soft_wrap=True)


def track(items: Iterable[T], total: int, what: str, *, show: bool = True) -> Iterable[T]:
    """A progress bar over ``items`` that disappears when done."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not show) as bar:
        yield from bar.track(items, total=total)
