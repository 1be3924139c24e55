"""MoCo v2 (Chen et al., 2020): contrast a query with its momentum key against a queue of past keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from finesight.errors import FineSightError
from finesight.methods.base import Data, Objective, ObjectiveConfig, full_precision
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather, shuffled_forward
from finesight.nn.heads import ProjectorName, projector
from finesight.nn.momentum import follow, momentum_twin
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool
from finesight.nn.queue import Queue, automatic_queue


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Per-image loss, positive and negative similarities. (N, D), (N, D), (Q, D) -> (N,), (N,), (N, Q)"""
    positive = (q * k).sum(1)
    negative = q @ negatives.T
    logits = torch.cat([positive[:, None], negative], dim=1) / temperature
    return torch.logsumexp(logits, dim=1) - logits[:, 0], positive, negative


class MoCoConfig(ObjectiveConfig):
    """Sizes and constants as in MoCo v2's code, with the paper's embedding of 256."""

    dim: int = Field(256, ge=1)
    hidden: int | None = Field(None, ge=1)  # None: as wide as φ
    projector: ProjectorName = "2-layer"
    temperature: float = Field(0.2, gt=0)
    momentum: float = Field(0.999, ge=0, le=1)
    queue: PositiveInt | Literal["auto"] = "auto"  # the paper: 65536
    key_batch: int = Field(32, ge=2)  # in one process, keys are batch-normalized in shuffled groups of this size


def queue_size(config: MoCoConfig, data: Data) -> int:
    """As configured, or what suits the data."""
    if config.queue == "auto":
        return automatic_queue(data.images, data.batch)
    if config.queue < data.batch:
        raise FineSightError(
            f"A queue of {config.queue} cannot hold one batch of {data.batch} keys: give --queue {data.batch} or more, "
            "or auto."
        )
    return config.queue


class MoCo(Objective):
    """The objective LCR is built on in the paper."""

    Config = MoCoConfig
    metrics: ClassVar[tuple[str, ...]] = ("positive_similarity", "negative_similarity")

    def __init__(self, backbone: Backbone, config: MoCoConfig, data: Data, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        hidden = config.hidden or backbone.channels
        self.head = projector(config.projector, self.pool.width, hidden, config.dim)
        self.key_backbone = momentum_twin(backbone)
        self.key_pool, self.key_head = momentum_twin(self.pool), momentum_twin(self.head)
        self.queue = Queue(queue_size(config, data), config.dim)

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi = self.backbone(views[0])
        k = shuffled_forward(self._keys, views[1], generator, self.config.key_batch)
        with full_precision(phi):
            pooled = self.pool(phi)
            q = F.normalize(self.head(pooled), dim=1)
            loss, positive, negative = info_nce(q, k, self.queue.vectors, self.config.temperature)
        metrics = {
            "positive_similarity": positive.detach().mean(),
            "negative_similarity": negative.detach().mean(),
        }
        return ObjectiveOutput(loss, phi, pooled, q, k, positive=positive, metrics=metrics)

    def _keys(self, images: Tensor) -> Tensor:
        phi = self.key_backbone(images)
        with full_precision(phi):
            return F.normalize(self.key_head(self.key_pool(phi)), dim=1)

    def before_step(self, progress: float = 0.0) -> None:
        follow(self.key_backbone, self.backbone, self.config.momentum)
        follow(self.key_pool, self.pool, self.config.momentum)
        follow(self.key_head, self.head, self.config.momentum)

    def after_step(self, outcome: ObjectiveOutput) -> None:
        self.queue.push(gather(outcome.target))
