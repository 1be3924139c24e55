"""``finesight methods``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json

from finesight.cli.options import Json


def methods(as_json: Json = False) -> None:
    """List every method: what it does, whether it has a rationale, and its row in the paper's Table 2."""
    from finesight.methods.recipes import RECIPES

    if as_json:
        print(json.dumps({name: vars(entry) for name, entry in RECIPES.items()}))
        return
    width = max(map(len, RECIPES))
    for name, entry in RECIPES.items():
        row = f"  [paper: {entry.paper}]" if entry.paper else ""
        print(f"{name:<{width}}  {entry.about}{row}")
