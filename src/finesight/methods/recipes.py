"""The systems of the paper as combinations: objective × rationale × pooling. A new one is an entry here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from finesight.errors import FineSightError
from finesight.nn.pooling_config import PoolingName


@dataclass(frozen=True)
class Recipe:
    """One named system."""

    about: str
    rationale: bool
    pooling: PoolingName | None = None  # None: what the reading of the rationale says


RECIPES: dict[str, Recipe] = {
    "lcr": Recipe("MoCo v2 with the rationale; its mask pools the features", rationale=True),
    "lcr-multitask": Recipe("the same training, features averaged as in MoCo v2", rationale=True, pooling="average"),
    "moco-v2": Recipe("contrastive learning alone, average pooling", rationale=False, pooling="average"),
}


def recipe(name: str) -> Recipe:
    """The recipe of that name, or an error that suggests the nearest ones."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4) or list(RECIPES)
    raise FineSightError(f"There is no method {name!r}. Nearest: {', '.join(near)}.")
