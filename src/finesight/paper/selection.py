"""Rows and trainings by name: those of the birds, and every registered method."""

from __future__ import annotations

from collections.abc import Sequence

from finesight.errors import unknown
from finesight.methods.base import METHODS
from finesight.paper.rows import BIRD_ROWS, TABLE_ROWS, TRAININGS, Row

KNOWN = {**BIRD_ROWS, **TABLE_ROWS}


def find_row(name: str) -> Row:
    """Return a row of birds or tables, or of a method by its own pooling; a ``FineSightError`` if there is none."""
    if name in KNOWN:
        return KNOWN[name]
    method = METHODS.get(_method(name))
    if method is None:
        raise unknown("method", name, [*KNOWN, *METHODS])
    return Row(name, method.pooling or ("rationale-gem" if method.rationale else "average"), method.about, method.paper)


def is_frozen(training: str) -> bool:
    """Tell whether nothing is trained for a training."""
    return METHODS[_method(training)].objective is None


def select_rows(names: Sequence[str], table: Sequence[str] = tuple(BIRD_ROWS)) -> dict[str, Row]:
    """Return the rows of ``names`` in the order of ``table``, then those of other methods; by default all."""
    chosen = [name for name in table if not names or name in names] + [name for name in names if name not in table]
    return {name: find_row(name) for name in dict.fromkeys(chosen)}


def _method(training: str) -> str:
    entry = TRAININGS.get(training)
    return training if entry is None or entry.method is None else entry.method
