"""Turn a ``clean.csv`` whose column ``decision`` was filled in into a corrected list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from finesight.curation.findings import DROP, KEEP, RELABEL, read_findings
from finesight.curation.imported import Imported
from finesight.errors import FineSightError
from finesight.io.console import printable_line

DECISIONS = ("", KEEP, RELABEL, DROP)


def read_decisions(file: Path) -> Iterator[Imported]:
    """Yield the decisions of a table; an empty one and ``keep`` change nothing.

    An image may be in several rows (a wrong label, and a copy): ``drop`` in one of them counts. A decision of another
    name, or ``relabel`` without a label in ``suggested``, is a ``FineSightError`` that names the line.
    """
    kept: dict[str, Imported] = {}
    for number, row in enumerate(read_findings(file, ("path", "suggested", "decision")), start=2):
        decision, label, path = row["decision"].strip().lower(), row["suggested"].strip(), row["path"]
        if decision not in DECISIONS:
            raise FineSightError(
                f"Line {number} of {file}: the decision {printable_line(decision)!r} is none of keep, relabel and drop."
            )
        if decision == RELABEL and not label:
            raise FineSightError(
                f"Line {number} of {file}: relabel needs a label in the column `suggested` ({printable_line(path)})."
            )
        known = kept.get(path, Imported(path))
        labels = (*known.labels, label) if decision == RELABEL else known.labels
        kept[path] = Imported(path, labels, known.drop or decision == DROP)
    yield from (one for one in kept.values() if one.drop or one.labels)
