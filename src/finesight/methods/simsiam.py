"""SimSiam (Chen & He, 2021): two views through one network; a predictor and a stop-gradient keep it from collapse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from finesight.methods.base import (
    SIMILARITY,
    DatasetInfo,
    HeadGroup,
    Objective,
    ObjectiveConfig,
    full_precision,
    register_objective,
)
from finesight.nn.backbone import Backbone
from finesight.nn.heads import mlp
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


class SimSiamConfig(ObjectiveConfig):
    """As in SimSiam's code."""

    dim: int = Field(2048, ge=1)
    hidden: int = Field(2048, ge=1)
    bottleneck: int = Field(512, ge=1)
    stop_gradient: bool = True  # without it the embeddings collapse: the paper's ablation


@register_objective("simsiam", "one network, a predictor and a stop-gradient", paper="SimSiam", order=70)
class SimSiam(Objective):
    Config = SimSiamConfig
    metrics = SIMILARITY
    joint_norm = True

    def __init__(self, backbone: Backbone, config: SimSiamConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = mlp(self.pool.width, config.hidden, config.hidden, config.dim, last="plain-norm")
        self.predictor = mlp(config.dim, config.bottleneck, config.dim, last="bias")

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        return {"optim.lr": 0.05 * batch_size / 256, "optim.cosine": "epoch"}

    def head_groups(self) -> list[HeadGroup]:
        """Return the head and the predictor, whose rate is constant: it has to keep up with embeddings that move."""
        return [HeadGroup(self.head.parameters()), HeadGroup(self.predictor.parameters(), constant=True)]

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        with full_precision(phi):
            pooled = self.pool(phi)
            first, second = self.head(pooled), self.head(self.pool(other))
            forth = F.cosine_similarity(self.predictor(first), self._target(second))
            back = F.cosine_similarity(self.predictor(second), self._target(first))
            loss = -(forth + back) / 2
            embedding, target = F.normalize(first, dim=1), F.normalize(second.detach(), dim=1)
        metrics = {"positive_similarity": (forth + back).detach().mean() / 2}
        return ObjectiveOutput(loss, phi, pooled, embedding, target, positive=forth, metrics=metrics)

    def _target(self, z: Tensor) -> Tensor:
        return z.detach() if self.config.stop_gradient else z
