"""SimCLR (Chen et al., 2020): each view must find its partner among all other views of the batch."""

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
    Objective,
    ObjectiveConfig,
    full_precision,
    register_objective,
)
from finesight.methods.defaults import lars
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather_with_gradient, world
from finesight.nn.heads import mlp
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent of this rank's images in the joined batch, the mean of an image's two anchors. (N, D)² -> (N,)"""
    all_a, all_b = gather_with_gradient(a), gather_with_gradient(b)
    own = torch.arange(len(a), device=a.device)
    position = own + world()[0] * len(a)

    def anchor(x: Tensor, same: Tensor, other: Tensor) -> Tensor:
        itself = torch.zeros(len(x), len(same), dtype=torch.bool, device=x.device)
        itself[own, position] = True
        with_same = (x @ same.T).masked_fill(itself, float("-inf"))
        with_other = x @ other.T
        logits = torch.cat([with_same, with_other], dim=1) / temperature  # (N, 2 B)
        return torch.logsumexp(logits, dim=1) - with_other[own, position] / temperature

    return (anchor(a, all_a, all_b) + anchor(b, all_b, all_a)) / 2


class SimCLRConfig(ObjectiveConfig):
    """As in SimCLR's code for ImageNet."""

    dim: int = Field(128, ge=1)
    hidden: int = Field(2048, ge=1)
    temperature: float = Field(0.1, gt=0)


@register_objective("simclr", "each view finds its partner among all views of the batch", paper="SimCLR", order=60)
class SimCLR(Objective):
    Config = SimCLRConfig
    metrics = SIMILARITY
    couples_batch = True
    joint_norm = True

    def __init__(self, backbone: Backbone, config: SimCLRConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = mlp(self.pool.width, config.hidden, config.dim, last="norm")

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        """Return the authors' settings: colors of strength 1, and their rate for small batches, 0.075 √batch."""
        colors = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
        rate = 0.075 * batch_size**0.5 * 256 / batch_size
        return {
            **lars(rate, batch_size, epochs),
            "views.scale": (0.08, 1.0),
            **{f"views.{name}": strength for name, strength in colors.items()},
        }

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi, other = self.backbone(views[0]), self.backbone(views[1])
        with full_precision(phi):
            pooled = self.pool(phi)
            a = F.normalize(self.head(pooled), dim=1)
            b = F.normalize(self.head(self.pool(other)), dim=1)
            loss = nt_xent(a, b, self.config.temperature)
            positive = (a * b.detach()).sum(1)
        metrics = {"positive_similarity": positive.detach().mean()}
        return ObjectiveOutput(loss, phi, pooled, a, b.detach(), positive=positive, metrics=metrics)
