"""Fine-tuning with labels, the first row of the paper's Table 2: what the features could be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import DatasetInfo, Objective, ObjectiveConfig, full_precision, register_objective
from finesight.nn.backbone import Backbone
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool

UNKNOWN = -1


class SupervisedConfig(ObjectiveConfig):
    """It has no settings."""


@register_objective("supervised", "fine-tuning with labels: what the features could be", paper="Supervised", order=110)
class Supervised(Objective):
    Config = SupervisedConfig
    metrics: ClassVar = {"accuracy": "accuracy on train"}
    views = 1
    labeled = True

    def __init__(
        self, backbone: Backbone, config: SupervisedConfig, data: DatasetInfo, pool: Pool | None = None
    ) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = nn.Linear(self.pool.width, data.classes)

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        """Return settings of crops and flips alone; the new head learns ten times as fast as the backbone."""
        return {
            "optim.lr": 0.01,
            "optim.backbone_lr_ratio": 0.1,
            "views.scale": (0.08, 1.0),
            "views.jitter": 0.0,
            "views.gray": 0.0,
            "views.blur": 0.0,
        }

    @classmethod
    def restored_sizes(cls, config: SupervisedConfig, state: Mapping[str, Tensor]) -> tuple[SupervisedConfig, int]:
        return config, len(state["head.weight"])

    @torch.no_grad()
    def predicted_labels(self, view: Tensor) -> Tensor:
        """Return the classes that the network itself gives."""
        logits: Tensor = self.head(self.pool(self.backbone(view)))
        return logits.argmax(1)

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        assert labels is not None
        phi = self.backbone(views[0])
        with full_precision(phi):
            pooled = self.pool(phi)
            logits = self.head(pooled)
            loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=UNKNOWN)
        unit = F.normalize(pooled, dim=1)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return ObjectiveOutput(loss, phi, pooled, unit, unit.detach(), metrics={"accuracy": accuracy})
