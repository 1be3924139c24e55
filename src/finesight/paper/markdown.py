"""Tables inside a page of the docs, so that nobody types their numbers.

A page marks where they go: ``<!-- bench:cpu-50:scores -->`` … ``<!-- /bench -->``, and the same with ``gains``, or with
``table1``, ``table2`` and ``table3`` for the paper's, ``summary`` for what the rationale adds to each objective and
``made`` for the footnotes of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic
from finesight.paper.scores import CURVE, difference_rows, score_rows
from finesight.paper.store import Results, ResultStore
from finesight.paper.summary import summary_rows
from finesight.paper.tables import TABLES, DatasetResults, footnotes, notes, table_cells, table_rows

PARTS = ("scores", "gains")
PAPER_PARTS = ("summary", *TABLES, "made")
BEGIN = re.compile(r"<!-- bench:(?P<name>[^\s>]*) -->")
END = "<!-- /bench -->"


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as a table; the first column is text, the others are numbers."""
    if not rows:
        return "(no results yet)"
    heads = list(rows[0])
    cells = [[str(row[head]).replace("|", "\\|") for head in heads] for row in rows]
    lines = [heads, [":---", *["---:"] * (len(heads) - 1)], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bird_blocks(store: ResultStore, results: Results, profile: str) -> dict[str, str]:
    """Return what goes between the marks of a profile, by their names. Rows of the K curve are drawn, not listed."""
    listed = {name: seeds for name, seeds in results.items() if name not in CURVE.values()}
    tables = {"scores": score_rows(listed), "gains": difference_rows(store, listed)}
    return {f"{profile}:{part}": markdown_table(without_names(tables[part])) for part in PARTS}


def paper_blocks(results: DatasetResults, profile: str) -> dict[str, str]:
    """Return the same for the paper's tables, of the datasets that have results; their footnotes are one list."""
    tables = {
        name: [cell for cell in table_cells(table, results) if results.get(cell.dataset.kind)]
        for name, table in TABLES.items()
    }
    cells = [cell for own in tables.values() for cell in own]
    known = footnotes(cells)
    blocks = {"summary": markdown_table(summary_rows(results))}
    blocks |= {name: markdown_table(table_rows(TABLES[name], own, known)) for name, own in tables.items()}
    blocks["made"] = "\n".join(f"- {note}" for note in notes(cells)) or "(no results yet)"
    return {f"{profile}:{name}": block for name, block in blocks.items()}


def without_names(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return rows without the column ``name``: people read their labels."""
    return [{key: cell for key, cell in row.items() if key != "name"} for row in rows]


def update_text(text: str, blocks: Mapping[str, str]) -> str:
    """Return ``text`` with every marked block of these names rewritten; raise a ``FineSightError`` if it has none."""
    pieces, place, found = [], 0, set()
    profiles = {name.partition(":")[0] for name in blocks}
    while (mark := BEGIN.search(text, place)) is not None:
        name, end = mark["name"], text.find(END, mark.end())
        following = BEGIN.search(text, mark.end())
        if end < 0 or (following is not None and following.start() < end):
            raise FineSightError(f"The block {mark[0]} has no end: put {END} behind it.")
        if name not in blocks and name.partition(":")[0] in profiles:
            raise FineSightError(f"{mark[0]}: there is no such table. There are: {', '.join(blocks)}.")
        body = f"\n\n{blocks[name]}\n\n" if name in blocks else text[mark.end() : end]
        pieces += [text[place : mark.end()], body, END]
        place = end + len(END)
        found.add(name)
    if not found & blocks.keys():
        wanted = " or ".join(f"<!-- bench:{name} -->" for name in blocks)
        raise FineSightError(f"There is no block to update: put {wanted}, and {END} behind it, where a table shall be.")
    return "".join(pieces) + text[place:]


def check_page(page: Path, profile: str, parts: Sequence[str] = PARTS) -> None:
    """Raise a ``FineSightError`` if a page has no block of this profile: before anything long begins."""
    _read_and_update(page, {f"{profile}:{part}": "" for part in parts})


def update_page(page: Path, blocks: Mapping[str, str]) -> bool:
    """Rewrite these blocks of a page; return False if nothing changed."""
    before, after = _read_and_update(page, blocks)
    if after != before:
        write_atomic(page, after.encode())
    return after != before


def _read_and_update(page: Path, blocks: Mapping[str, str]) -> tuple[str, str]:
    try:
        text = page.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FineSightError(f"The page {page} cannot be read: {error}") from error
    try:
        return text, update_text(text, blocks)
    except FineSightError as error:
        raise FineSightError(f"{page}: {error}") from error
