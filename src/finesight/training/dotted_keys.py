"""Turn nested tables of settings into one with dotted keys, and back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{'views.resolution': 112} -> {'views': {'resolution': 112}}; nested tables are merged."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *folders, leaf = str(key).split(".")
        here = tree
        for folder in folders:
            here = _table(here, folder)
        if isinstance(value, dict):
            _table(here, leaf).update(nested(value))
        else:
            here[leaf] = value
    return tree


def _table(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the table under ``key``; a plain value there is replaced by an empty table."""
    if not isinstance(tree.get(key), dict):
        tree[key] = {}
    table: dict[str, Any] = tree[key]
    return table


def flat(config: BaseModel) -> dict[str, Any]:
    """{'views': {'resolution': 112}} -> {'views.resolution': 112}, for comparing and listing."""
    return dotted(config.model_dump(mode="json"))


def dotted(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted keys: the inverse of ``nested``."""
    pairs: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        pairs.update(dotted(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return pairs
