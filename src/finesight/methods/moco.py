"""MoCo v2 (Chen et al., 2020): contrast a query with its momentum key against a queue of past keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.errors import FineSightError
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
from finesight.methods.defaults import FOCUSED_CROPS, REACHES_ENCODER
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather, shuffled_forward
from finesight.nn.heads import ProjectorName, projector
from finesight.nn.momentum import momentum_copy
from finesight.nn.norm import uses_batch_statistics
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool
from finesight.nn.queue import Queue, automatic_queue


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return per-image loss, positive and negative similarities. (N, D), (N, D), (Q, D) -> (N,), (N,), (N, Q)"""
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


def queue_size(queue: int | Literal["auto"], data: DatasetInfo) -> int:
    """Return the configured size, or for "auto" one that suits the dataset.

    Raises
    ------
    FineSightError
        If the queue cannot hold the keys of one batch.
    """
    if queue == "auto":
        return automatic_queue(data.images, data.batch_size)
    if queue < data.batch_size:
        raise FineSightError(
            f"A queue of {queue} cannot hold one batch of {data.batch_size} keys: give --queue {data.batch_size} or "
            "more, or auto."
        )
    return queue


@register_objective("moco")
class MoCo(Objective):
    """The objective LCR is built on in the paper."""

    Config = MoCoConfig
    metrics: ClassVar[Mapping[str, str]] = {**SIMILARITY, "negative_similarity": "similarity, other images"}

    def __init__(self, backbone: Backbone, config: MoCoConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        hidden = config.hidden or backbone.channels
        self.head = projector(config.projector, self.pool.width, hidden, config.dim)
        self.key_backbone = momentum_copy(backbone)
        self.key_pool, self.key_head = momentum_copy(self.pool), momentum_copy(self.head)
        self.queue = Queue(queue_size(config.queue, data), config.dim)

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        phi = self.backbone(views[0])
        k = shuffled_forward(self._keys, views[1], generator, self._key_group())
        with full_precision(phi):
            pooled = self.pool(phi)
            q = F.normalize(self.head(pooled), dim=1)
            loss, positive, negative = info_nce(q, k, self.queue.vectors, self.config.temperature)
        similarities = {"positive_similarity": positive, "negative_similarity": negative}
        metrics = {name: values.detach().mean() for name, values in similarities.items()}
        return ObjectiveOutput(loss, phi, pooled, q, k, positive=positive, metrics=metrics)

    def _key_group(self) -> int | None:
        """Return how many keys are normalized together; None for all, if stages and all norms of the key are frozen.

        Larger batches are faster. Without frozen stages keys keep the bits they had in groups.
        """
        frozen = any(not weight.requires_grad for weight in self.backbone.parameters())
        cut = not frozen or uses_batch_statistics(self.key_backbone, self.key_pool, self.key_head)
        return self.config.key_batch if cut else None

    def _keys(self, images: Tensor) -> Tensor:
        phi = self.key_backbone(images)
        with full_precision(phi):
            return F.normalize(self.key_head(self.key_pool(phi)), dim=1)

    @classmethod
    def restored_sizes(cls, config: MoCoConfig, state: Mapping[str, Tensor]) -> tuple[MoCoConfig, int]:
        return config.model_copy(update={"queue": len(state["queue.vectors"])}), 0

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.key_backbone, self.backbone), (self.key_pool, self.pool), (self.key_head, self.head)]

    def after_step(self, output: ObjectiveOutput) -> None:
        self.queue.push(gather(output.target))


_BILINEAR: dict[str, Any] = {"train_pooling": "bilinear", "rationale.branch_norm": "batch"}

register_method(
    "moco-v2",
    Method("contrast a query with its key against a queue of past keys", "moco", paper="MoCo v2", order=10),
)
register_method(
    "moco-bilinear",
    Method(
        "every projection pools its own feature, in training and after; nothing teaches them where",
        "moco",
        rationale=True,
        pooling="bilinear",
        paper="MoCo v2-Bilinear",
        settings={**_BILINEAR, "rationale.nu": 0.0},
        order=10,
    ),
)
register_method(
    "sam-ssl",
    Method(
        "one projection is fitted to GradCAM as a second task, features are averaged",
        "moco",
        rationale=True,
        pooling="average",
        paper="SAM-SSL",
        settings={**REACHES_ENCODER, "rationale.projections": 1},
        order=10,
    ),
)
register_method(
    "sam-ssl-bilinear",
    Method(
        "the projections that pool, in training and after, are fitted to GradCAM",
        "moco",
        rationale=True,
        pooling="bilinear",
        paper="SAM-SSL-Bilinear",
        settings=_BILINEAR,
        order=10,
    ),
)
register_method(
    "contrastive-crop",
    Method(
        "MoCo v2 with crops about what the network finds interesting",
        "moco",
        paper="ContrastiveCrop",
        settings=FOCUSED_CROPS,
        order=10,
    ),
)
register_method(
    "dilo",
    Method(
        "MoCo v2 with objects pasted on other backgrounds, half of the time",
        "moco",
        paper="DiLo",
        settings={"saliency.source": "detector", "views.paste": 0.5, "views.backdrops": (2.0, 1.0, 1.0)},
        order=10,
    ),
)
