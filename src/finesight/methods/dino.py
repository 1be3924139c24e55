"""DINO (Caron et al., 2021), in its form for ResNets: a student learns its teacher's soft assignment of other crops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import (
    DatasetInfo,
    HeadGroup,
    Objective,
    ObjectiveConfig,
    full_precision,
    register_objective,
)
from finesight.methods.defaults import ASYMMETRIC_VIEWS, warm_up
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather
from finesight.nn.momentum import momentum_copy
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool

GLOBAL = 2  # the first two views are large, and the only ones the teacher sees


class DINOConfig(ObjectiveConfig):
    """As in the authors' code for ResNet-50; momentum as they advise for batches of 256 and less."""

    prototypes: int = Field(65536, ge=2)
    hidden: int = Field(2048, ge=1)
    bottleneck: int = Field(256, ge=1)
    student_temperature: float = Field(0.1, gt=0)
    teacher_temperature: float = Field(0.04, gt=0)
    center_momentum: float = Field(0.9, ge=0, lt=1)
    momentum: float = Field(0.9995, ge=0, le=1)
    freeze_epochs: float = Field(1.0, ge=0)  # the prototypes wait


class DINOHead(nn.Module):
    """Three layers with GELU and no batch norm, a unit vector, then prototypes of length one."""

    def __init__(self, channels: int, config: DINOConfig) -> None:
        super().__init__()
        widths = (channels, config.hidden, config.hidden, config.bottleneck)
        first, second, third = (nn.Linear(a, b) for a, b in pairwise(widths))
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU(), third)
        self.prototypes = nn.Parameter(torch.empty(config.prototypes, config.bottleneck))
        for layer in (first, second, third):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        nn.init.kaiming_uniform_(self.prototypes, a=math.sqrt(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit vectors and their similarity to the prototypes."""
        unit = F.normalize(self.layers(x), dim=1)
        return unit, unit @ F.normalize(self.prototypes, dim=1).T


def dino_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Return the mean cross-entropy over pairs of different views. Log-probabilities, probabilities, (N, P) -> (N,)"""
    pairs = [-(target * guess).sum(1) for t, target in enumerate(teacher) for s, guess in enumerate(student) if s != t]
    return torch.stack(pairs).mean(0)


def _renamed_center(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename the center, which checkpoints of earlier versions call ``centre``."""
    if f"{prefix}centre" in state:
        state[f"{prefix}center"] = state.pop(f"{prefix}centre")


@register_objective("dino", "a student learns its teacher's soft assignment of other crops", paper="DINO", order=80)
class DINO(Objective):
    Config = DINOConfig
    metrics: ClassVar = {"teacher_entropy": "teacher entropy"}
    momentum_rises = True
    joint_norm = True
    center: Tensor

    def __init__(self, backbone: Backbone, config: DINOConfig, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__(backbone, config, data, pool)
        self.head = DINOHead(self.pool.width, config)
        self.teacher_backbone = momentum_copy(backbone)
        self.teacher_pool, self.teacher_head = momentum_copy(self.pool), momentum_copy(self.head)
        self.register_buffer("center", torch.zeros(config.prototypes))
        self.register_load_state_dict_pre_hook(_renamed_center)  # type: ignore[no-untyped-call]

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        return {
            **warm_up(epochs),
            **ASYMMETRIC_VIEWS,
            "optim.lr": 0.03 * batch_size / 256,
            "optim.clip_grad_norm_per_tensor": 3.0,
            "optim.decay_biases": False,
            "views.scale": (0.14, 1.0),
            "views.local_crops": 8,
            "views.local_blur": 0.5,
        }

    @property
    def exported(self) -> Backbone:
        """The teacher, whose features are better than the student's."""
        return self.teacher_backbone

    def head_groups(self) -> list[HeadGroup]:
        layers = HeadGroup(self.head.layers.parameters())
        return [layers, HeadGroup([self.head.prototypes], freeze_epochs=self.config.freeze_epochs)]

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        n, config = len(views[0]), self.config
        maps = [self.backbone(torch.cat(list(same))) for _, same in groupby(views, key=lambda view: view.shape)]
        phi = maps[0][:n]
        target_unit, teacher = self._teacher(torch.cat(list(views[:GLOBAL])))
        with full_precision(phi):
            pooled = self.pool(phi)
            rest = torch.cat([self.pool(maps[0][n:]), *(self.pool(other) for other in maps[1:])])
            unit, logits = self.head(torch.cat([pooled, rest]))
            guesses = (logits / config.student_temperature).log_softmax(1)
            targets = ((teacher - self.center) / config.teacher_temperature).softmax(1)
            loss = dino_loss(torch.split(guesses, n), torch.split(targets, n))
        self._teacher_logits = teacher
        entropy = torch.special.entr(targets).sum(1).mean()
        return ObjectiveOutput(loss, phi, pooled, unit[:n], target_unit[n:], metrics={"teacher_entropy": entropy})

    @torch.no_grad()
    def _teacher(self, images: Tensor) -> tuple[Tensor, Tensor]:
        phi = self.teacher_backbone(images)
        with full_precision(phi):
            unit, logits = self.teacher_head(self.teacher_pool(phi))
        return unit, logits

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        copies = (self.teacher_backbone, self.teacher_pool, self.teacher_head)
        return list(zip(copies, (self.backbone, self.pool, self.head), strict=True))

    @torch.no_grad()
    def after_step(self, output: ObjectiveOutput) -> None:
        self.center.lerp_(gather(self._teacher_logits).mean(0), 1 - self.config.center_momentum)
        del self._teacher_logits
