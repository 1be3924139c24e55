"""One small model of each of timm's families, and what FineSight makes of it: the table of docs/backbones.md.

python tests/families.py      # prints the table for the installed timm
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from importlib.util import find_spec

import timm

from finesight.errors import FineSightError
from finesight.nn.feature_map import FeatureMap, find_map
from finesight.nn.parts import find_parts

_SMALL = ("test_", "atto", "femto", "pico", "nano", "xxs", "tiny", "mini", "_ti_", "xs", "small", "_s")
HEAD = "| family | for example | φ is | pixels of a cell | image sides | parts |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Family:
    """A module of timm and what was found of a small model of it."""

    module: str
    example: str
    map: FeatureMap | None
    refusal: str | None

    def row(self) -> str:
        if self.map is None:
            words = str(self.refusal).partition("' ")[2].partition(". Take another")[0]
            return f"| {self.module} | `{self.example}` | refused: {words} | | | |"
        kinds = {"NCHW": "its map", "NHWC": "its map, channels moved", "tokens": "its tokens"}
        kind, sides = kinds[self.map.layout], self.map.sides
        dropped = f", {self.map.prefix} dropped" if self.map.prefix else ""
        taken = "any" if sides.multiple == 1 else f"{sides.multiple} only" if sides.fixed else f"× {sides.multiple}"
        known = find_parts(self.example)
        parts = f"{len(known)} ({known.kind})" if known else "not known"
        return f"| {self.module} | `{self.example}` | {kind}{dropped} | {self.map.stride} | {taken} | {parts} |"


def modules() -> list[str]:
    """Return timm's own families: models of other packages and of tests may be registered too."""
    return [name for name in timm.list_modules() if find_spec(f"timm.models.{name}")]


def example(module: str) -> str:
    """Return a small model of the family, by its name: words for small ones, then the lowest numbers."""

    def size(name: str) -> tuple[int, list[int], str]:
        word = next((rank for rank, word in enumerate(_SMALL) if word in name), len(_SMALL))
        return word, [int(number) for number in re.findall(r"\d+", name)], name

    return min(timm.list_models(module=module), key=size)


def family(module: str) -> Family:
    name = example(module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Family(module, name, find_map(name).map, None)
    except FineSightError as error:
        return Family(module, name, None, str(error))


if __name__ == "__main__":
    print(HEAD)
    for module in modules():
        print(family(module).row(), flush=True)
