"""Named settings of a bench. Everything a number depends on is in here, or in the seed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from finesight.bench.systems import NETWORKS, PROJECTIONS, System
from finesight.config import TrainConfig, build_config
from finesight.errors import FineSightError
from finesight.methods.moco import MoCoConfig


class Profile(BaseModel):
    """Settings for every network of the bench, and more for those that have a rationale to set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    words: str
    classes: int | None = None  # the first ones; None: all
    settings: dict[str, Any]
    rationale: dict[str, Any] = {}
    seeds: tuple[int, ...] = (0, 1, 2)
    probed: tuple[str, ...] | None = None  # the rows that get linear probes; None: all that may

    def config(self, network: str, *, data: str, weights: str, seed: int) -> TrainConfig:
        """The training of a network of the bench."""
        entry = NETWORKS[network]
        assert entry.method is not None
        return build_config(
            {
                **self.settings,
                **({"rationale.study": PROJECTIONS, **self.rationale} if entry.rationale else {}),
                **entry.settings,
                "data": data,
                "method": entry.method,
                "backbone.weights": weights,
                "limit_classes": self.classes,
                "seed": seed,
            }
        )

    def probes(self, row: str, system: System) -> bool:
        """Whether a row gets linear probes."""
        return system.probe and (self.probed is None or row in self.probed)

    def facts(self, config: TrainConfig, queue: int) -> dict[str, Any]:
        """What a table must say of the setting."""
        assert isinstance(config.objective, MoCoConfig)
        return {
            "name": self.name,
            "resolution": config.views.resolution,
            "test_resolution": config.encoder_resolution,
            "output_stride": config.backbone.output_stride,
            "frozen_stages": config.backbone.freeze,
            "frozen_norm": config.backbone.frozen_norm,
            "epochs": config.epochs,
            "batch": config.batch,
            "queue": queue,
            "ema": config.objective.momentum,
            "lr": config.optim.lr,
            "backbone_share": config.optim.backbone_share,
            "hold_epochs": config.optim.hold_epochs,
            "initial_share": config.initial_share,
        }


# Chosen on a validation part of CUB's train images (docs/results.md), never on test.
_CPU: dict[str, Any] = {
    "views.resolution": 128,
    "views.saturation": 0.1,  # a bird's colours tell its species: a network that learns to overlook them
    "views.hue": 0.02,  # loses more than it gains
    "views.grey": 0.0,
    "test_resolution": 224,
    "backbone.freeze": 3,  # stem, layer1 and layer2
    "backbone.frozen_norm": True,
    "epochs": 4,
    "batch": 32,
    "objective.momentum": 0.99,
    "optim.lr": 0.03,
    "optim.backbone_share": 0.3,
    "optim.hold_epochs": 1,
    "initial_share": 0.5,
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
        | {"epochs": 2, "optim.hold_epochs": 0.5, "optim.cosine": "step"},  # four times the steps an epoch
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
            "batch": 128,
            "objective.queue": 65536,
            "objective.momentum": 0.999,
            "optim.lr": 0.03,
            "validation.fraction": 0.0,
        },
    ),
}


def profile(name: str) -> Profile:
    """The profile of that name."""
    if name not in PROFILES:
        raise FineSightError(f"There is no profile {name!r}. There are: {', '.join(PROFILES)}.")
    return PROFILES[name]
