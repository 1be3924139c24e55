"""What a method is: an objective that computes the loss, and a name for one combination of it with other settings.

A method registers itself in its own file, ``@register_objective`` on the class and ``register_method`` beside it, or in
a module of another distribution that the entry-point group ``finesight.methods`` names. Nothing else lists methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone
from finesight.nn.momentum import ema_update, rising_momentum
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import Pool
from finesight.nn.pooling_config import PoolingName
from finesight.registry import P, Registry

SIMILARITY: Mapping[str, str] = {"positive_similarity": "similarity, same image"}  # a metric of several objectives


@dataclass(frozen=True)
class DatasetInfo:
    """What an objective may need to know of the dataset it is trained on."""

    images: int
    batch_size: int  # over all devices
    classes: int = 0  # 0: no labels


@dataclass(frozen=True)
class HeadGroup:
    """Parameters beside the backbone that share a learning-rate schedule."""

    params: Iterable[nn.Parameter]
    freeze_epochs: float = 0.0
    constant: bool = False  # their rate does not follow the cosine


class ObjectiveConfig(BaseModel):
    """The constants of an objective."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(nn.Module, ABC):
    """Computes a loss for each image from its views. ``backbone`` is the network that learns.

    ``pool`` makes the vector that the head sees of φ; by default the average. The class attributes describe the
    objective to the trainer, the report and ``finesight explain``.
    """

    Config: ClassVar[type[ObjectiveConfig]]
    metrics: ClassVar[Mapping[str, str]] = {}  # keys of ``ObjectiveOutput.metrics``, in order -> words for people
    views: ClassVar[int | None] = None  # how many of the configured views it takes; None: all
    labeled: ClassVar[bool] = False  # it learns from labels
    couples_batch: ClassVar[bool] = False  # an image's loss depends on the other images of the batch
    sees_cells: ClassVar[bool] = False  # its head reads single cells of φ too, so nothing may pool them otherwise
    momentum_rises: ClassVar[bool] = False  # ``config.momentum`` of its copies rises to 1 along half a cosine
    joint_norm: ClassVar[bool] = False  # in several processes, batch norms see the joined batch

    def __init__(self, backbone: Backbone, config: Any, data: DatasetInfo, pool: Pool | None = None) -> None:
        super().__init__()
        self.backbone, self.config = backbone, config
        self.pool = pool or Pool(backbone.channels)
        if self.sees_cells and not self.pool.uniform:
            raise FineSightError(f"{type(self).__name__} looks at single cells of φ: its train_pooling is 'average'.")

    @classmethod
    def defaults(cls, batch_size: int, epochs: int) -> dict[str, Any]:
        """Return the settings, with dots, that the authors use in place of MoCo v2's."""
        return {}

    @abstractmethod
    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        """Compute the losses of one step.

        ``generator`` is seeded by the step alone and the same on every rank; labels are of this rank's images.
        """

    def momentum_copies(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the networks without gradient, each with the one whose moving average it is."""
        return []

    def before_step(self, progress: float = 0.0) -> None:
        """Update the momentum copies before the forward of a step. ``progress`` goes from 0 to 1."""
        for average, online in self.momentum_copies():
            start = self.config.momentum
            ema_update(average, online, rising_momentum(start, progress) if self.momentum_rises else start)

    def after_step(self, output: ObjectiveOutput) -> None:
        """Update what a step ends with (queues, centers), without gradient, after its backward."""

    @property
    def exported(self) -> Backbone:
        """The network that a run saves as its encoder."""
        return self.backbone

    @property
    def average_pooled(self) -> bool:
        """Whether the loss sees φ only through its average, so that GradCAM needs the gradient there alone."""
        return self.pool.uniform and not self.sees_cells

    def head_groups(self) -> list[HeadGroup]:
        """Return everything trained beside the backbone, and beside the branch if it pools."""
        own = {*self.backbone.parameters(), *self.pool.parameters()}
        return [HeadGroup([p for p in self.parameters() if p.requires_grad and p not in own])]

    # --- for explaining a run without its dataset ---------------------------------------------------------------------

    @classmethod
    def restored_sizes(cls, config: Any, state: Mapping[str, Tensor]) -> tuple[Any, int]:
        """Return the config and the number of classes with which a saved ``state`` of the objective can be loaded.

        An objective whose tensors are as large as the dataset makes them reads the sizes off the state.
        """
        return config, 0

    def predicted_labels(self, view: Tensor) -> Tensor | None:
        """Return labels (N,) for images whose classes are unknown; None if the objective takes no labels."""
        return None


@dataclass(frozen=True)
class Method:
    """What a name given to ``--method`` stands for: an objective, with or without rationale, and settings."""

    about: str
    objective: str | None  # None: nothing is trained
    rationale: bool = False  # by default; --rationale and --no-rationale decide otherwise
    pooling: PoolingName | None = None  # None: that of the rationale's variant, or average without a rationale
    paper: str | None = None  # its row in the paper's tables
    settings: Mapping[str, Any] = field(default_factory=dict)  # with dots, over the objective's and the variant's
    order: int = 1000  # its place in lists; equal ones come as registered

    def find_objective(self) -> type[Objective] | None:
        """Return the class of its objective; None if nothing is trained."""
        return None if self.objective is None else OBJECTIVES.find(self.objective)

    def describe(self) -> dict[str, Any]:
        """Return what ``finesight methods --json`` says of it."""
        return {name: value for name, value in vars(self).items() if name != "order"}


OBJECTIVES: Registry[type[Objective]] = Registry("objective", ("finesight.methods",), "finesight.methods")
METHODS: Registry[Method] = Registry(
    "method", ("finesight.methods",), "finesight.methods", order=lambda method: method.order
)


def register_objective(name: str, about: str | None = None, **fields: Any) -> Callable[[P], P]:
    """Return a decorator that registers an objective's class and, with ``about``, the plain method of that name.

    ``fields`` are further ones of ``Method``.
    """
    if about is not None:
        register_method(name, Method(about, name, **fields))
    return OBJECTIVES.decorator(name)


def register_method(name: str, method: Method) -> None:
    """Make ``method`` known under ``name``."""
    METHODS.register(name, method)


def find_method(name: str) -> Method:
    """Return the method of that name (an underscore counts as a dash), or raise ``FineSightError``."""
    dashed = name.replace("_", "-")
    return METHODS.find(dashed if dashed in METHODS else name)


def full_precision(phi: Tensor) -> torch.autocast:
    """Return a context for head and loss in full precision: GradCAM is too small for half precision."""
    return torch.autocast(phi.device.type, enabled=False)
