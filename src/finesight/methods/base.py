"""What every self-supervised method hands on, and the little it must implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from finesight.nn.backbone import Backbone


@dataclass(frozen=True)
class Outcome:
    """One step of an objective on N images. The rationale, the health checks and the trainer read only this."""

    loss: Tensor  # (N,) per image
    phi: Tensor  # (N, C, H, W) map of the view the loss is attributed to
    pooled: Tensor  # (N, C) what the head saw of φ
    embedding: Tensor  # (N, D) unit vectors of the online branch
    target: Tensor  # (N, D) what they were compared with, no gradient
    positive: Tensor | None = None  # (N,) similarity of the positive pair, not divided by the temperature
    average_pooled: bool = True  # False: GradCAM needs the gradient of the whole map
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module, ABC):
    """A method: views in, per-image loss out. ``backbone`` is the online network a run leaves behind."""

    views: int = 2

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    @abstractmethod
    def forward(self, views: Sequence[Tensor], generator: torch.Generator) -> Outcome:
        """``generator`` is seeded by the step alone and the same on every rank."""

    def before_step(self) -> None:
        """Before the forward of a step, without gradient (momentum updates)."""

    def after_step(self, outcome: Outcome) -> None:
        """After the backward of a step, without gradient (queues, centres)."""
