"""BYOL (Grill et al., 2020): predict what a momentum copy says of the other view. No negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import (
    SIMILARITY,
    DatasetInfo,
    Method,
    Objective,
    ObjectiveConfig,
    full_precision,
    register_method,
    register_objective,
)
from finesight.methods.defaults import ASYMMETRIC_VIEWS, lars
from finesight.nn.backbone import Backbone
from finesight.nn.heads import mlp
from finesight.nn.momentum import momentum_copy
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


class BYOLConfig(ObjectiveConfig):
    """Sizes of the paper; the twin's momentum is that for 100 epochs (0.996 for 300 and more)."""

    dim: int = Field(256, ge=1)
    hidden: int = Field(4096, ge=1)
    momentum: float = Field(0.99, ge=0, le=1)


@register_objective("byol", "predict what a slowly following twin says of the other view", paper="BYOL", order=31)
class BYOL(Objective):
    Config = BYOLConfig
    metrics = SIMILARITY
    momentum_rises = True
    joint_norm = True

    def __init__(self, backbone: Backbone, config: BYOLConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = mlp(self.pool.width, config.hidden, config.dim, last="bias")
        self.predictor = mlp(config.dim, config.hidden, config.dim, last="bias")
        self.twin_backbone = momentum_copy(backbone)
        self.twin_pool, self.twin_head = momentum_copy(self.pool), momentum_copy(self.head)

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        return {**lars(0.45, batch_size, epochs), **ASYMMETRIC_VIEWS}

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        targets = [self._target(view) for view in views[:2]]
        with full_precision(phi):
            pooled = self.pool(phi)
            embedding = self.head(pooled)
            first = F.cosine_similarity(self.predictor(embedding), targets[1])
            second = F.cosine_similarity(self.predictor(self.head(self.pool(other))), targets[0])
            loss = 4 - 2 * first - 2 * second
        metrics = {"positive_similarity": (first + second).detach().mean() / 2}
        unit = F.normalize(embedding, dim=1)
        return ObjectiveOutput(loss, phi, pooled, unit, targets[1], positive=first, metrics=metrics)

    @torch.no_grad()
    def _target(self, view: Tensor) -> Tensor:
        phi = self.twin_backbone(view)
        with full_precision(phi):
            return F.normalize(self.twin_head(self.twin_pool(phi)), dim=1)

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.twin_backbone, self.backbone), (self.twin_pool, self.pool), (self.twin_head, self.head)]


register_method("byol-lcr", Method("BYOL with the rationale", "byol", rationale=True, paper="BYOL+Ours", order=30))
