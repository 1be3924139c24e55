"""``finesight methods``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json

from finesight.cli.options import Json


def methods(as_json: Json = False) -> None:
    """List every method: what it does, whether it has a rationale, and its row in the paper's Table 2."""
    from finesight.methods.base import METHODS

    if as_json:
        print(json.dumps({name: method.describe() for name, method in METHODS.items()}))
        return
    width = max(map(len, METHODS))
    for name, method in METHODS.items():
        row = f"  [paper: {method.paper}]" if method.paper else ""
        print(f"{name:<{width}}  {method.about}{row}")
