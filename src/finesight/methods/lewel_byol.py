"""LEWEL in its BYOL form (LEWEL-B): predict a momentum copy's embedding of the other view, and its aligned vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import SIMILARITY, DatasetInfo, Objective, full_precision, register_objective
from finesight.methods.defaults import ASYMMETRIC_VIEWS, lars
from finesight.methods.lewel import ALIGNED_METRICS, LEWELHead, LEWELHeadConfig, apply_each
from finesight.nn.backbone import Backbone
from finesight.nn.heads import mlp
from finesight.nn.momentum import momentum_copy
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


class LEWELBYOLConfig(LEWELHeadConfig):
    momentum: float = Field(0.996, ge=0, le=1)


@register_objective("lewel-byol", "the same in BYOL's form, as its authors released it", order=50)
class LEWELBYOL(Objective):
    """The momentum copy pools its own view by its own maps."""

    Config = LEWELBYOLConfig
    metrics: ClassVar = {**SIMILARITY, **ALIGNED_METRICS}
    momentum_rises = True
    joint_norm = True
    sees_cells = True

    def __init__(
        self, backbone: Backbone, config: LEWELBYOLConfig, data: DatasetInfo, pool: Pool | None = None
    ) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = LEWELHead(backbone.channels, config)
        self.predictor = mlp(config.dim, config.hidden, config.dim, last="no-bias")
        self.aligned_predictor = mlp(config.dim, config.hidden, config.dim, last="no-bias")
        self.twin_backbone, self.twin_head = momentum_copy(backbone), momentum_copy(self.head)

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        return {**lars(0.9, batch_size, epochs, weight_decay=1.5e-6), **ASYMMETRIC_VIEWS, "views.scale": (0.2, 1.0)}

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        targets = [self._target(view) for view in views[:2]]
        with full_precision(phi):
            head = self.head(phi)
            first, aligned_first = self._agreement(head.vectors, targets[1])
            second, aligned_second = self._agreement(self.head(other).vectors, targets[0])
            instance, aligned = 4 - 2 * first - 2 * second, 4 - 2 * aligned_first - 2 * aligned_second
            loss = torch.lerp(instance, aligned, self.config.aligned_share)
        metrics = {
            "positive_similarity": (first + second).detach().mean() / 2,
            "aligned_similarity": (aligned_first + aligned_second).detach().mean() / 2,
            "map_entropy": head.map_entropy(),
        }
        embedding = F.normalize(head.vectors[:, 0], dim=1)
        return ObjectiveOutput(loss, phi, head.pooled, embedding, targets[1][:, 0], positive=first, metrics=metrics)

    def _agreement(self, vectors: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine of predictions and targets: the image's, and the mean of the aligned ones. (N, 1 + M, D)² -> (N,)²"""
        instance = F.cosine_similarity(self.predictor(vectors[:, 0]), target[:, 0])
        aligned = F.cosine_similarity(apply_each(self.aligned_predictor, vectors[:, 1:]), target[:, 1:], dim=2)
        return instance, aligned.mean(1)

    @torch.no_grad()
    def _target(self, view: Tensor) -> Tensor:
        phi = self.twin_backbone(view)
        with full_precision(phi):
            return F.normalize(self.twin_head(phi).vectors, dim=2)

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.twin_backbone, self.backbone), (self.twin_head, self.head)]
