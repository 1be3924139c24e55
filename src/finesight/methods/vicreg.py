"""VICReg (Bardes et al., 2022): views alike, every dimension alive, dimensions uncorrelated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from finesight.methods.base import DatasetInfo, Objective, ObjectiveConfig, full_precision, register_objective
from finesight.methods.defaults import ASYMMETRIC_VIEWS, lars
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather_with_gradient, own_rows
from finesight.nn.heads import mlp
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool

EPS = 1e-4


def variance_parts(centered: Tensor) -> Tensor:
    """Return the images' parts of mean_d max(0, 1 − s_d), s_d the dimension's deviation. (B, D) -> (B,)

    s = (var + ε) / s, and var is a mean of squares: an image's part is the term with its own square.
    """
    scale = len(centered) / (len(centered) - 1)
    s = (centered.var(0) + EPS).sqrt()
    return ((1 - (scale * centered.square() + EPS) / s) * (s < 1)).mean(1)


def covariance_parts(centered: Tensor) -> Tensor:
    """Return the images' parts of Σ_{i≠j} cov_ij² / D: cov_ij is a mean of one product per image. (B, D) -> (B,)"""
    scale = len(centered) / (len(centered) - 1)
    cov = centered.T @ centered / (len(centered) - 1)
    cov = cov - cov.diagonal().diag()
    return scale * ((centered @ cov) * centered).sum(1) / centered.shape[1]


class VICRegConfig(ObjectiveConfig):
    """As in the authors' code."""

    dim: int = Field(8192, ge=2)
    hidden: int = Field(8192, ge=1)
    invariance: float = Field(25.0, ge=0)
    variance: float = Field(25.0, ge=0)
    covariance: float = Field(1.0, ge=0)


@register_objective("vicreg", "views alike, dimensions alive and uncorrelated", paper="VICReg", order=100)
class VICReg(Objective):
    Config = VICRegConfig
    metrics: ClassVar = {
        "invariance": "distance of the views",
        "variance": "missing variance",
        "covariance": "covariance",
    }
    couples_batch = True
    joint_norm = True

    def __init__(self, backbone: Backbone, config: VICRegConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = mlp(self.pool.width, config.hidden, config.hidden, config.dim, last="no-bias")

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        return {**lars(0.2, batch_size, epochs), **ASYMMETRIC_VIEWS}

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        config = self.config
        with full_precision(phi):
            pooled = self.pool(phi)
            first, second = self.head(pooled), self.head(self.pool(other))
            invariance = (first - second).square().mean(1)
            both = [joined - joined.mean(0) for joined in (gather_with_gradient(first), gather_with_gradient(second))]
            variance = own_rows(sum(variance_parts(z) for z in both)) / 2  # type: ignore[arg-type]
            covariance = own_rows(sum(covariance_parts(z) for z in both))  # type: ignore[arg-type]
            loss = config.invariance * invariance + config.variance * variance + config.covariance * covariance
            embedding, target = F.normalize(first, dim=1), F.normalize(second.detach(), dim=1)
        parts = {"invariance": invariance, "variance": variance, "covariance": covariance}
        metrics = {name: part.detach().mean() for name, part in parts.items()}
        return ObjectiveOutput(loss, phi, pooled, embedding, target, metrics=metrics)
