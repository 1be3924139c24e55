"""The tables of a bench inside a page of the docs, so that none of their numbers is ever typed.

A page marks where they go: ``<!-- bench:cpu-50:scores -->`` … ``<!-- /bench -->``, and the same with ``gains``, or with
``table1``, ``table2`` and ``table3`` for the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic
from finesight.paper.results import ResultFiles, Results
from finesight.paper.table import CURVE, difference_rows, score_rows
from finesight.paper.tables import TABLES, Found, cells, notes, table_rows

PARTS = ("scores", "gains")
BEGIN = re.compile(r"<!-- bench:(?P<name>[^\s>]*) -->")
END = "<!-- /bench -->"


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The first column is words, the others numbers."""
    if not rows:
        return "(no results yet)"
    heads = list(rows[0])
    cells = [[str(row[head]).replace("|", "\\|") for head in heads] for row in rows]
    lines = [heads, [":---", *["---:"] * (len(heads) - 1)], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def blocks(files: ResultFiles, results: Results, profile: str) -> dict[str, str]:
    """What goes between the marks of a profile, by their names. The rows of the K curve are drawn, not listed."""
    listed = {name: seeds for name, seeds in results.items() if name not in CURVE.values()}
    tables = {"scores": score_rows(listed), "gains": difference_rows(files, listed)}
    return {f"{profile}:{part}": markdown_table(without_names(tables[part])) for part in PARTS}


def paper_blocks(found: Found, profile: str) -> dict[str, str]:
    """The same of the paper's tables, each with how our numbers in it were made."""
    made = {}
    for name, table in TABLES.items():
        known = cells(table, found)
        below = "\n".join(f"- {note}" for note in notes(known)) or "(no results yet)"
        made[f"{profile}:{name}"] = f"{markdown_table(table_rows(table, known))}\n\n{below}"
    return made


def without_names(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """For people: the rows have their words."""
    return [{key: cell for key, cell in row.items() if key != "name"} for row in rows]


def update(text: str, blocks: Mapping[str, str]) -> str:
    """``text`` with every marked block of these names rewritten; the others stay as they are."""
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
    """Before anything long: is there a block of this profile to update in the end?"""
    _updated(page, {f"{profile}:{part}": "" for part in parts})


def update_page(page: Path, blocks: Mapping[str, str]) -> bool:
    """Rewrite these blocks of a page; False when they said the same already."""
    before, after = _updated(page, blocks)
    if after != before:
        write_atomic(page, after.encode())
    return after != before


def _updated(page: Path, blocks: Mapping[str, str]) -> tuple[str, str]:
    try:
        text = page.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FineSightError(f"The page {page} cannot be read: {error}") from error
    try:
        return text, update(text, blocks)
    except FineSightError as error:
        raise FineSightError(f"{page}: {error}") from error
