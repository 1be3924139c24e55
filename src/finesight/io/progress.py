"""Progress bars on standard error that disappear when the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from finesight.io.console import console

T = TypeVar("T")
PhaseProgress = Callable[[str, int, int], None]  # phase, done, total (0: not known)


def progress_bar(show: bool = True, *columns: ProgressColumn, transient: bool = True) -> Progress:
    """Return a bar with the columns; by default a description, how much is done and the time left."""
    default = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*(columns or default), console=console, transient=transient, disable=not show)


def track(items: Iterable[T], total: int, what: str, *, show: bool = True) -> Iterable[T]:
    """Yield ``items`` while a bar counts them."""
    with progress_bar(show) as bar:
        yield from bar.track(items, total=total, description=what)


@contextmanager
def phase_bar(words: Mapping[str, str], show: bool = True) -> Iterator[PhaseProgress]:
    """Yield a function that shows how far which phase is; ``words`` say what each phase does."""
    with progress_bar(show) as bar:
        task = bar.add_task("", total=None)

        def tell(phase: str, done: int, total: int) -> None:
            bar.update(task, description=words[phase], completed=done, total=total or None)

        yield tell
