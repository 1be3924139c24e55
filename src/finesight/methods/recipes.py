"""The systems of the paper as combinations: objective × rationale × pooling. A new one is an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finesight.errors import unknown
from finesight.nn.pooling_config import PoolingName


@dataclass(frozen=True)
class Recipe:
    """One named system."""

    about: str
    objective: str | None  # None: nothing is trained
    rationale: bool = False  # unless it is asked for, or asked to stay away
    pooling: PoolingName | None = None  # None: what the reading of the rationale says, or average without one
    paper: str | None = None  # its row in the paper's tables
    settings: Mapping[str, Any] = field(default_factory=dict)  # with dots, on top of the objective's and the reading's


# As in the paper: the branch steps by itself, and a hundredth of its loss reaches the encoder.
_REACHES_THE_ENCODER: dict[str, Any] = {"rationale.encoder_gradient": 1.0, "rationale.nu": 0.01}
_BILINEAR: dict[str, Any] = {"train_pooling": "bilinear", "rationale.branch_norm": "batch"}

RECIPES: dict[str, Recipe] = {
    "lcr": Recipe("MoCo v2 with the rationale; its mask pools the features", "moco", rationale=True, paper="Ours"),
    "lcr+contrastive-crop": Recipe(
        "LCR with crops about what the network finds interesting",
        "moco",
        rationale=True,
        paper="Ours+ContrastiveCrop",
        settings={"focus.source": "energy"},
    ),
    "lcr-multitask": Recipe(
        "the rationale as a second task alone: it reaches the encoder, features are averaged",
        "moco",
        rationale=True,
        pooling="average",
        paper="Ours-MultiTask",
        settings=_REACHES_THE_ENCODER,
    ),
    "lcr-dual-pooling": Recipe(
        "the mask pools while training too; collapses in the paper",
        "moco",
        rationale=True,
        pooling="rationale",
        paper="Ours-DualPooling",
        settings={"train_pooling": "rationale"},
    ),
    "lcr-mlp": Recipe(
        "a branch of two layers in place of the maximum over projections",
        "moco",
        rationale=True,
        paper="MLP",
        settings={"rationale.form": "mlp"},
    ),
    "lcr-single": Recipe("a branch of one projection", "moco", rationale=True, settings={"rationale.projections": 1}),
    "moco-v2": Recipe("contrast a query with its key against a queue of past keys", "moco", paper="MoCo v2"),
    "moco-bilinear": Recipe(
        "every projection pools its own feature, in training and after; nothing teaches them where",
        "moco",
        rationale=True,
        pooling="bilinear",
        paper="MoCo v2-Bilinear",
        settings={**_BILINEAR, "rationale.nu": 0.0},
    ),
    "sam-ssl": Recipe(
        "one projection is fitted to GradCAM as a second task, features are averaged",
        "moco",
        rationale=True,
        pooling="average",
        paper="SAM-SSL",
        settings={**_REACHES_THE_ENCODER, "rationale.projections": 1},
    ),
    "sam-ssl-bilinear": Recipe(
        "the projections that pool, in training and after, are fitted to GradCAM",
        "moco",
        rationale=True,
        pooling="bilinear",
        paper="SAM-SSL-Bilinear",
        settings=_BILINEAR,
    ),
    "contrastive-crop": Recipe(
        "MoCo v2 with crops about what the network finds interesting",
        "moco",
        paper="ContrastiveCrop",
        settings={"focus.source": "energy"},
    ),
    "dilo": Recipe(
        "MoCo v2 with objects pasted on other backgrounds, half of the time",
        "moco",
        paper="DiLo",
        settings={"saliency.source": "detector", "views.paste": 0.5, "views.backdrops": (2.0, 1.0, 1.0)},
    ),
    "cvsa": Recipe(
        "crops about the object, its key on another background, and a loss that says where it is",
        "cvsa",
        paper="CVSA",
        settings={"saliency.source": "detector", "focus.source": "saliency", "views.second_paste": 1.0},
    ),
    "byol-lcr": Recipe("BYOL with the rationale", "byol", rationale=True, paper="BYOL+Ours"),
    "byol": Recipe("predict what a slowly following twin says of the other view", "byol", paper="BYOL"),
    "lewel": Recipe(
        "heads learn where to look, each pools its own aligned vectors (MoCo form)", "lewel", paper="LEWEL"
    ),
    "lewel-byol": Recipe("the same in BYOL's form, as its authors released it", "lewel-byol"),
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
