"""The paper's own numbers, to stand beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

Place = Sequence[str | int]  # the way to a value: keys of dictionaries, indices of lists

TABLE_1 = "tab:classifiaction_and_retrieval"  # as the paper's source spells it
TABLE_2 = "tab:comp_4SSL"
TABLE_3 = "tab:comparison_with_crop_table"


@cache
def paper_results() -> dict[str, Any]:
    """Return all tables: label -> row -> dataset -> metric."""
    text = resources.files("finesight.paper").joinpath("paper_results.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def paper_row(method: str, dataset: str = "CUB") -> dict[str, Any]:
    """Return ``retrieval`` and ``linear`` of a row of the paper, where it has them, in the form of our results."""
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


def look_up(tree: Any, place: Place) -> Any:
    """Return the value at the end of a way through dictionaries and lists; None where the way ends early."""
    for key in place:
        if isinstance(tree, list) and isinstance(key, int):
            tree = tree[key]
        else:
            tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
