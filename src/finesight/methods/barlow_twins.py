"""Barlow Twins (Zbontar et al., 2021): the two views' outputs should correlate dimension by dimension, and only so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import DatasetInfo, Objective, ObjectiveConfig, full_precision, register_objective
from finesight.methods.defaults import ASYMMETRIC_VIEWS, lars
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import sum_over_ranks, world
from finesight.nn.heads import mlp
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


def barlow(a: Tensor, b: Tensor, off_diagonal: float) -> tuple[Tensor, Tensor]:
    """Return the images' parts of Σ (1 − C_ii)² + λ Σ_{i≠j} C_ij², and C, of standardized outputs. (N, D)² -> (N,)

    C_ij being the mean over images of a_i b_j, C_ij² is the mean of C_ij a_i b_j: an image's part is the term in its
    own a and b, and the mean over the joined batch is the loss.
    """
    c = sum_over_ranks(a.T @ b) / (len(a) * world()[1])  # (D, D)
    weight = off_diagonal + (1 - off_diagonal) * torch.eye(len(c), dtype=c.dtype, device=c.device)
    return a.shape[1] - 2 * (a * b).sum(1) + ((a @ (weight * c)) * b).sum(1), c


class BarlowTwinsConfig(ObjectiveConfig):
    """As in the authors' code."""

    dim: int = Field(8192, ge=2)
    hidden: int = Field(8192, ge=1)
    off_diagonal: float = Field(0.0051, ge=0)  # λ


@register_objective("barlow-twins", "outputs correlate dimension by dimension only", paper="BarlowTwins", order=90)
class BarlowTwins(Objective):
    Config = BarlowTwinsConfig
    metrics: ClassVar = {"diagonal": "correlation, same dimension", "off_diagonal": "correlation, other dimensions"}
    couples_batch = True
    joint_norm = True

    def __init__(
        self, backbone: Backbone, config: BarlowTwinsConfig, data: DatasetInfo, pool: Pool | None = None
    ) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = mlp(self.pool.width, config.hidden, config.hidden, config.dim, last="no-bias")
        self.norm = nn.BatchNorm1d(config.dim, affine=False)

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        """Return the authors' settings: biases and norms have a rate of their own, the cosine ends at a thousandth."""
        return {
            **lars(0.2, batch_size, epochs),
            "optim.bias_lr_ratio": 0.0048 / 0.2,
            "optim.min_lr_ratio": 1e-3,
            **ASYMMETRIC_VIEWS,
        }

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        with full_precision(phi):
            pooled = self.pool(phi)
            first, second = self.head(pooled), self.head(self.pool(other))
            loss, c = barlow(self.norm(first), self.norm(second), self.config.off_diagonal)
            embedding, target = F.normalize(first, dim=1), F.normalize(second.detach(), dim=1)
        c = c.detach()
        diagonal = c.diagonal()
        others = (c.square().sum() - diagonal.square().sum()) / (len(c) * (len(c) - 1))
        metrics = {"diagonal": diagonal.mean(), "off_diagonal": others.clamp(min=0).sqrt()}
        return ObjectiveOutput(loss, phi, pooled, embedding, target, metrics=metrics)
