"""Profiles: named settings. All that a number depends on is in here, in the training or in the seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from finesight.errors import FineSightError
from finesight.methods.base import find_method
from finesight.methods.moco import MoCo
from finesight.paper.rows import BIRD_ROWS, Row, Training
from finesight.training.config import TrainConfig, build_config
from finesight.training.renamed import current_settings


class Profile(BaseModel):
    """Settings for every training, and more for those that have a rationale."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    words: str  # about it, for people
    classes: int | None = None  # the first ones; None: all
    settings: dict[str, Any]
    rationale: dict[str, Any] = {}
    seeds: tuple[int, ...] = (0, 1, 2)
    probed: tuple[str, ...] | None = None  # the rows that get linear probes; None: all that may

    def config(
        self, training: Training, *, data: str | Path, seed: int, given: Mapping[str, Any] | None = None
    ) -> TrainConfig:
        """Return the configuration of a training: its settings override ``given`` ones, and these the profile's."""
        own = {**(given or {}), **training.settings}
        method = training.method or own.get("method", "lcr")
        entry = find_method(method)
        ours = entry.rationale and current_settings(own)[0].get("rationale.variant", "finesight") == "finesight"
        rationale = {key: value for key, value in self.rationale.items() if ours and key not in entry.settings}
        values = {**settings_for(self.settings, method), **rationale, "limit_classes": self.classes, **own}
        return build_config({**values, "data": str(data), "method": method, "seed": seed})

    def probes(self, name: str, row: Row) -> bool:
        """Tell whether a row gets linear probes. Rows of the paper's tables always do: the tables show little else."""
        return row.probe and (self.probed is None or name in self.probed or name not in BIRD_ROWS)

    def facts(self, config: TrainConfig, queue: int | None) -> dict[str, Any]:
        """Return what a table must say of the setting."""
        return {
            "name": self.name,
            "resolution": config.views.resolution,
            "test_resolution": config.encoder_resolution,
            "output_stride": config.backbone.output_stride,
            "frozen_stages": config.backbone.freeze,
            "frozen_norm": config.backbone.frozen_norm,
            "epochs": config.epochs,
            "batch": config.batch_size,
            "queue": queue,
            "ema": getattr(config.objective, "momentum", None),
            "lr": config.optim.lr,
            "backbone_share": config.optim.backbone_lr_ratio,
            "hold_epochs": config.optim.freeze_epochs,
            "initial_share": config.initial_weight_ratio,
        }


def settings_for(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return those of a profile's ``settings``, which are written for MoCo v2, that another method takes.

    Data, views, epochs, batch size and what is frozen are the same for all. Of the objective's own settings a method
    takes those it has (a queue, an EMA momentum). Its authors' optimizer stays, learning rate included, where they
    have another one. Nobody tunes this rule.
    """
    kind, fields = find_method(method).find_objective(), TrainConfig.model_fields
    if kind is None or kind is MoCo:
        return dict(settings)
    batch, epochs = (settings.get(name, fields[name].default) for name in ("batch_size", "epochs"))
    theirs = {key for key in kind.defaults(batch, epochs) if key.startswith("optim.")}
    foreign = {
        key
        for key in settings
        if key.startswith("objective.") and key.removeprefix("objective.") not in kind.Config.model_fields
    }
    return {key: value for key, value in settings.items() if key not in theirs | foreign}


# Chosen on a validation part of CUB's train images (docs/results.md), never on test.
_CPU: dict[str, Any] = {
    "views.resolution": 128,
    "views.saturation": 0.1,  # a bird's colors tell its species: a network that learns to overlook them
    "views.hue": 0.02,  # loses more than it gains
    "views.gray": 0.0,
    "test_resolution": 224,
    "backbone.freeze": 3,  # stem, layer1 and layer2
    "backbone.frozen_norm": True,
    "epochs": 4,
    "batch_size": 32,
    "objective.momentum": 0.99,
    "optim.lr": 0.03,
    "optim.backbone_lr_ratio": 0.3,
    "optim.freeze_epochs": 1,
    "initial_weight_ratio": 0.5,
    "validation.fraction": 0.0,
}

PROFILES: dict[str, Profile] = {
    "cpu-50": Profile(
        name="cpu-50",
        words="the first 50 classes, for a CPU",
        classes=50,
        settings=_CPU | {"objective.queue": 750},  # half the images, as everywhere
    ),
    "cpu-200": Profile(
        name="cpu-200",
        words="all 200 classes, for a CPU",
        settings=_CPU
        | {"epochs": 2, "optim.freeze_epochs": 0.5, "optim.cosine": "step"},  # four times the steps an epoch
        probed=(
            *("frozen", "frozen-energy", "frozen-gem", "frozen-energy-gem"),
            *("moco-v2", "moco-v2-energy-gem", "lcr-multitask", "lcr", "lcr-paper"),
        ),
    ),
    "paper": Profile(
        name="paper",
        words="the paper's setting, for several GPUs",
        settings={
            "views.resolution": 224,
            "epochs": 100,
            "batch_size": 128,
            "objective.queue": 65536,  # a twin's momentum is its authors': MoCo's 0.999, BYOL's 0.99, DINO's 0.9995
            "optim.lr": 0.03,
            "validation.fraction": 0.0,
        },
    ),
    "smoke": Profile(
        name="smoke",
        words="a few steps on five classes: does it run? Its numbers say nothing",
        classes=5,
        settings=_CPU
        | {"views.resolution": 64, "test_resolution": 64, "epochs": 1, "batch_size": 16, "optim.freeze_epochs": 0.25},
        seeds=(0,),
    ),
}


def find_profile(name: str, profiles: Mapping[str, Profile] = PROFILES) -> Profile:
    """Return the profile of that name; raise a ``FineSightError`` that lists them all if there is none."""
    if name not in profiles:
        raise FineSightError(f"There is no profile {name!r}. There are: {', '.join(profiles)}.")
    return profiles[name]
