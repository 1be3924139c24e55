"""The systems of the paper as combinations: objective × rationale × pooling. A new one is an entry here."""

from __future__ import annotations

from dataclasses import dataclass

from finesight.errors import unknown
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
    raise unknown("method", name, RECIPES)
