"""Profiles: named settings. All that a number depends on is in here, in the training or in the seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from finesight.errors import FineSightError
from finesight.methods.base import find_method
from finesight.paper.rows import BIRD_ROWS, Row, Training
from finesight.training.color_rule import MILD
from finesight.training.config import TrainConfig, build_config
from finesight.training.gentle import BATCH, GENTLE, settings_for, tame_lars
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
        variant = current_settings(own)[0].get("rationale.variant", "finesight" if entry.rationale else None)
        ours = variant == "finesight"
        rationale = {key: value for key, value in self.rationale.items() if ours and key not in entry.settings}
        values = {**settings_for(self.settings, method), **rationale, "limit_classes": self.classes, **own}
        if training.gentle and (objective := entry.find_objective()) is not None:
            values |= {key: choice.value for key, choice in tame_lars(objective, values, values["batch_size"]).items()}
        return build_config({**values, "data": str(data), "method": method, "seed": seed})

    def probes(self, name: str, row: Row) -> bool:
        """Tell whether a row gets linear probes. Rows of the paper's tables always do: the tables show little else."""
        return row.probe and (self.probed is None or name in self.probed or name not in BIRD_ROWS)

    def facts(self, config: TrainConfig, queue: int | None, *, half: bool = False) -> dict[str, Any]:
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
            "half": half,
        }


_CPU: dict[str, Any] = {
    **GENTLE,
    **MILD,
    "epochs": 4,
    "batch_size": BATCH,
    "optim.freeze_epochs": 1,
    "validation.fraction": 0.0,
}

_CPU_200 = Profile(
    name="cpu-200",
    words="all 200 classes, for a CPU",
    settings=_CPU | {"epochs": 2, "optim.freeze_epochs": 0.5, "optim.cosine": "step"},  # four times the steps an epoch
    probed=(
        *("frozen", "frozen-energy", "frozen-gem", "frozen-energy-gem"),
        *("moco-v2", "moco-v2-energy-gem", "lcr-multitask", "lcr", "lcr-paper"),
    ),
)

PROFILES: dict[str, Profile] = {
    "cpu-50": Profile(
        name="cpu-50",
        words="the first 50 classes, for a CPU",
        classes=50,
        settings=_CPU | {"objective.queue": 750},  # half the images, as everywhere
    ),
    "cpu-200": _CPU_200,
    "cpu-200-320px": _CPU_200.model_copy(
        update={
            "name": "cpu-200-320px",
            "words": "the same tested at 320 px: under the rationale's mask, a finer map helps",
            "settings": {**_CPU_200.settings, "test_resolution": 320},
        }
    ),
    "cpu-200-resnet18": _CPU_200.model_copy(
        update={
            "name": "cpu-200-resnet18",
            "words": "the same with a ResNet-18, so that nothing rests on one network",
            "settings": {**_CPU_200.settings, "backbone.name": "resnet18"},
        }
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
