"""What every method hands on, and the little it must implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool


@dataclass(frozen=True)
class Data:
    """What an objective may need to know of what it is trained on."""

    images: int
    batch: int  # over all devices
    classes: int = 0  # 0: no labels


@dataclass(frozen=True)
class HeadGroup:
    """Parameters beside the backbone that share a schedule."""

    params: Iterable[nn.Parameter]
    freeze_epochs: float = 0.0
    constant: bool = False  # their rate does not follow the cosine


class ObjectiveConfig(BaseModel):
    """The constants of a method."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(nn.Module, ABC):
    """A method: views in, per-image loss out. ``backbone`` is the network that learns, ``pool`` what its head sees."""

    Config: ClassVar[type[ObjectiveConfig]]
    metrics: ClassVar[tuple[str, ...]] = ()  # names of what ``ObjectiveOutput.metrics`` holds
    views: ClassVar[int | None] = None  # how many of the configured views it takes; None: all
    labeled: ClassVar[bool] = False
    sees_cells: ClassVar[bool] = False  # its head reads single cells of φ too, so nothing may pool them otherwise
    masked: ClassVar[bool] = False  # its views have a fourth channel: where the object is, from 0 to 1
    joint_norm: ClassVar[bool] = False  # in several processes, batch norms see the joined batch

    def __init__(self, backbone: Backbone, config: Any, data: Data, pool: Pool | None = None) -> None:
        super().__init__()
        self.backbone, self.config = backbone, config
        self.pool = pool or Pool(backbone.channels)
        if self.sees_cells and not self.pool.uniform:
            raise FineSightError(f"{type(self).__name__} looks at single cells of φ: its train_pooling is 'average'.")

    @classmethod
    def defaults(cls, batch: int, epochs: int) -> dict[str, Any]:
        """Settings, with dots, that the method's authors use in place of MoCo v2's."""
        return {}

    @abstractmethod
    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        """``generator`` is seeded by the step alone and the same on every rank; labels are of this rank's images."""

    def before_step(self, progress: float = 0.0) -> None:
        """Before the forward of a step, without gradient (momentum updates). ``progress`` goes from 0 to 1."""

    def after_step(self, outcome: ObjectiveOutput) -> None:
        """After the backward of a step, without gradient (queues, centers)."""

    @property
    def exported(self) -> Backbone:
        """The network a run leaves behind."""
        return self.backbone

    def head_groups(self) -> list[HeadGroup]:
        """Everything trained beside the backbone, and beside the branch if it pools."""
        own = {*self.backbone.parameters(), *self.pool.parameters()}
        return [HeadGroup([p for p in self.parameters() if p.requires_grad and p not in own])]


def full_precision(phi: Tensor) -> torch.autocast:
    """Around head and loss: GradCAM is too small for half precision."""
    return torch.autocast(phi.device.type, enabled=False)
