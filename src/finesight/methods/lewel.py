"""LEWEL (Huang et al., 2022): the head that embeds an image also says where to look. Here in its MoCo form.

Of this form nothing was released; what is not in the authors' BYOL form (lewel_byol.py) is MoCo v2's or said below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.errors import FineSightError
from finesight.methods.base import DatasetInfo, Objective, ObjectiveConfig, full_precision, register_objective
from finesight.methods.moco import MoCo, info_nce, queue_size
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather, own_rows, shuffled_forward, world
from finesight.nn.heads import mlp
from finesight.nn.momentum import momentum_copy
from finesight.nn.norm import join_norms
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool, average
from finesight.nn.queue import Queue


class LEWELHeadConfig(ObjectiveConfig):
    """Sizes of the authors' code. Every dimension of the embedding is a map: ``dim`` = heads × maps of each."""

    dim: int = Field(256, ge=1)
    hidden: int = Field(4096, ge=1)
    heads: int = Field(4, ge=1)  # groups of channels that look at places of their own
    scale: float = Field(1.0, gt=0)  # the smaller, the sharper the maps
    aligned_share: float = Field(0.5, ge=0, le=1)  # of the loss

    @model_validator(mode="after")
    def _as_many_maps_for_every_head(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} cannot be divided among {self.heads} heads")
        return self


def align(cells: Tensor, maps: Tensor, heads: int) -> Tensor:
    """Sum each head's channels over the cells by its m-th map: the m-th vector. (N, C, L), (N, D, L) -> (N, M, C)"""
    values, weights = (x.reshape(len(x), heads, -1, x.shape[2]) for x in (cells, maps))
    return (weights @ values.mT).transpose(1, 2).flatten(2)  # (N, heads, M, C / heads) -> (N, M, C)


def apply_each(network: nn.Module, vectors: Tensor) -> Tensor:
    """Apply the network to every vector of every image, as one batch. (N, L, C) -> (N, L, D)"""
    outputs: Tensor = network(vectors.flatten(0, 1))
    return outputs.view(*vectors.shape[:2], -1)


class HeadOutput(NamedTuple):
    """The output of ``LEWELHead``."""

    pooled: Tensor  # (N, C) the average of φ
    vectors: Tensor  # (N, 1 + M, D) the whole image's, then the aligned ones
    maps: Tensor  # (N, D, L) over the L = H*W cells; each sums to one

    def map_entropy(self) -> Tensor:
        """Return the entropy of the maps; 1 if they are uniform, so that every aligned vector is the average."""
        entropy: Tensor = torch.special.entr(self.maps.detach()).sum(2).mean()
        return entropy / math.log(max(2, self.maps.shape[2]))


ALIGNED_METRICS = {"aligned_similarity": "similarity, aligned vectors", "map_entropy": "map entropy"}


class LEWELHead(nn.Module):
    """One MLP for the average of φ and, the same weights, for its cells; a second one for the aligned vectors.

    As in the released code the average joins the cells as one more position, and batch norm takes its statistics from
    all of them together: the image's embedding and the maps are normalized alike.
    """

    def __init__(self, channels: int, config: LEWELHeadConfig) -> None:
        super().__init__()
        if channels % config.heads:
            raise FineSightError(
                f"The backbone's {channels} channels cannot be divided among {config.heads} heads: set objective.heads "
                "to a number that divides them and objective.dim."
            )
        self.heads, self.scale = config.heads, config.scale
        self.shared = mlp(channels, config.hidden, config.dim, last="no-bias")
        self.aligned = mlp(channels, config.hidden, config.dim, last="no-bias")

    def forward(self, phi: Tensor) -> HeadOutput:
        pooled = average(phi)
        cells = phi.flatten(2).to(pooled.dtype)  # (N, C, L)
        positions = torch.cat([pooled[:, :, None], cells], dim=2).transpose(1, 2)
        embedded = apply_each(self.shared, positions)  # (N, 1 + L, D)
        maps = (F.normalize(embedded[:, 1:], dim=2) / self.scale).softmax(dim=1).transpose(1, 2)
        aligned = apply_each(self.aligned, align(cells, maps, self.heads))
        return HeadOutput(pooled, torch.cat([embedded[:, :1], aligned], dim=1), maps)


class LEWELConfig(LEWELHeadConfig):
    """Beside the heads as in MoCo v2."""

    temperature: float = Field(0.2, gt=0)
    momentum: float = Field(0.999, ge=0, le=1)
    queue: PositiveInt | Literal["auto"] = "auto"  # of either kind of keys
    key_batch: int = Field(32, ge=2)


@dataclass(frozen=True, kw_only=True)
class LEWELOutput(ObjectiveOutput):
    aligned_key: Tensor  # (N, D) what enters the second queue


@register_objective(
    "lewel", "heads learn where to look, each pools its own aligned vectors (MoCo form)", paper="LEWEL", order=40
)
class LEWEL(Objective):
    """Whole images are contrasted as in MoCo, aligned vectors with the same map's in the other view.

    Negatives of the aligned ones come from a queue of their own. All M of an image would leave room for a few images
    only, nearly alike as an image's vectors are; so each image adds one, of a map drawn anew, and the queue holds all
    maps and as many images as the first.

    The heads have batch norms. Queries are normalized over the joined batch of all ranks, keys over shuffled parts of
    it (a rank each, or ``key_batch``): in several processes as in one, and a key still cannot tell its query's batch.
    """

    Config = LEWELConfig
    metrics: ClassVar = {**MoCo.metrics, **ALIGNED_METRICS}
    sees_cells = True

    def __init__(self, backbone: Backbone, config: LEWELConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = LEWELHead(backbone.channels, config)
        self.key_backbone, self.key_head = momentum_copy(backbone), momentum_copy(self.head)
        join_norms(self.backbone)  # not those of the keys, as ``joint_norm`` would
        join_norms(self.head)
        size = queue_size(config.queue, data)
        self.queue, self.aligned_queue = Queue(size, config.dim), Queue(size, config.dim)

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        config = self.config
        phi = self.backbone(views[0])
        k = shuffled_forward(self._keys, views[1], generator, config.key_batch)  # (N, 1 + M, D)
        with full_precision(phi):
            head = self.head(phi)
            q = F.normalize(head.vectors, dim=2)
            loss, positive, negative = info_nce(q[:, 0], k[:, 0], self.queue.vectors, config.temperature)
            pairs = (q[:, 1:].flatten(0, 1), k[:, 1:].flatten(0, 1))
            aligned, aligned_positive, _ = info_nce(*pairs, self.aligned_queue.vectors, config.temperature)
            loss = torch.lerp(loss, aligned.view(len(q), -1).mean(1), config.aligned_share)
        metrics = {
            "positive_similarity": positive.detach().mean(),
            "negative_similarity": negative.detach().mean(),
            "aligned_similarity": aligned_positive.detach().mean(),
            "map_entropy": head.map_entropy(),
        }
        drawn = torch.randint(1, k.shape[1], (len(k) * world()[1],), generator=generator)  # of the joined batch
        aligned_key = k[torch.arange(len(k), device=k.device), own_rows(drawn).to(k.device)]
        return LEWELOutput(
            loss, phi, head.pooled, q[:, 0], k[:, 0], positive=positive, metrics=metrics, aligned_key=aligned_key
        )

    def _keys(self, images: Tensor) -> Tensor:
        phi = self.key_backbone(images)
        with full_precision(phi):
            return F.normalize(self.key_head(phi).vectors, dim=2)

    @classmethod
    def restored_sizes(cls, config: LEWELConfig, state: Mapping[str, Tensor]) -> tuple[LEWELConfig, int]:
        return config.model_copy(update={"queue": len(state["queue.vectors"])}), 0

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.key_backbone, self.backbone), (self.key_head, self.head)]

    def after_step(self, output: ObjectiveOutput) -> None:
        assert isinstance(output, LEWELOutput)
        self.queue.push(gather(output.target))
        self.aligned_queue.push(gather(output.aligned_key))
