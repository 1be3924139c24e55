"""The systems of the paper as combinations: objective × rationale × pooling. A new one is an entry here."""

from __future__ import annotations

from dataclasses import dataclass

from finesight.errors import unknown
from finesight.nn.pooling_config import PoolingName


@dataclass(frozen=True)
class Recipe:
    """One named system."""

    about: str
    objective: str | None  # None: nothing is trained
    rationale: bool = False  # unless it is asked for, or asked to stay away
    pooling: PoolingName | None = None  # None: what the reading of the rationale says, or average without one
    paper: str | None = None  # its row in the paper's Table 2 or, if it has none there, 1


RECIPES: dict[str, Recipe] = {
    "lcr": Recipe("MoCo v2 with the rationale; its mask pools the features", "moco", rationale=True, paper="Ours"),
    "lcr-multitask": Recipe(
        "the same training, features averaged as in MoCo v2", "moco", rationale=True, pooling="average"
    ),
    "moco-v2": Recipe("contrast a query with its key against a queue of past keys", "moco", paper="MoCo v2"),
    "byol-lcr": Recipe("BYOL with the rationale", "byol", rationale=True, paper="BYOL+Ours"),
    "byol": Recipe("predict what a slowly following twin says of the other view", "byol", paper="BYOL"),
    "simclr": Recipe("each view finds its partner among all views of the batch", "simclr", paper="SimCLR"),
    "simsiam": Recipe("one network, a predictor and a stop-gradient", "simsiam", paper="SimSiam"),
    "dino": Recipe("a student learns its teacher's soft assignment of other crops", "dino", paper="DINO"),
    "barlow-twins": Recipe("outputs correlate dimension by dimension only", "barlow-twins", paper="BarlowTwins"),
    "vicreg": Recipe("views alike, dimensions alive and uncorrelated", "vicreg", paper="VICReg"),
    "supervised": Recipe("fine-tuning with labels: what the features could be", "supervised", paper="Supervised"),
    "frozen": Recipe("the backbone as its weights are, nothing trained", None, paper="ResNet-50"),
}


def recipe(name: str) -> Recipe:
    """The recipe of that name, or an error that suggests the nearest ones."""
    if (found := RECIPES.get(name.replace("_", "-"))) is not None:
        return found
    raise unknown("method", name, RECIPES)
