"""The paper's own numbers, to stand beside ours."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

TABLE_1 = "tab:classifiaction_and_retrieval"  # as the paper's source spells it
TABLE_2 = "tab:comp_4SSL"
TABLE_3 = "tab:comparison_with_crop_table"


@cache
def paper_results() -> dict[str, Any]:
    """All tables: label -> method -> data set -> metric."""
    text = resources.files("finesight.paper").joinpath("paper_results.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def paper_row(method: str, dataset: str = "CUB") -> dict[str, Any]:
    """``retrieval`` and ``linear`` of a method as far as the paper gives them, in the form of our results."""
    tables = paper_results()
    if full := tables[TABLE_1].get(method, {}).get(dataset):
        return {"retrieval": full["retrieval"], "linear": full["classification"]}
    short = tables[TABLE_3].get(method, {}).get(dataset, {})
    known = {key: value for key, value in short.items() if isinstance(value, int | float)}
    row: dict[str, Any] = {}
    if "rank1" in known:
        row["retrieval"] = {"rank1": known["rank1"]}
    if "top1" in known:
        row["linear"] = {"100": {"top1": known["top1"]}}
    return row


def paper_value(label: str, row: str, path: tuple[str, ...]) -> float | str | None:
    """A printed cell: a number, or the word "collapse"; None where the paper has nothing."""
    here: Any = paper_results()[label].get(row, {})
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return None if isinstance(here, dict) else here
