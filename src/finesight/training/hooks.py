"""The hook of a training: what a system may change in its batches, its views and before an epoch.

Most systems change nothing and use the base class itself. Others subclass it and register the class; the first one
that applies to a configuration is used. The hook of the paper's Table 3 is in ``finesight.paper.hooks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finesight.data.views import ViewConfig, apply_views, sample_params
from finesight.registry import Registry

if TYPE_CHECKING:
    from finesight.data.cache import DecodedCache
    from finesight.training.batches import Batch, Batches
    from finesight.training.config import TrainConfig
    from finesight.training.module import TrainingModule


class TrainingHook(nn.Module):
    """What every training has: plain views of plain batches.

    Tensors with a row for each image are no buffers: they may be large, stay in the computer's own memory or on its
    disk, and are written beside the checkpoint when they have changed.
    """

    per_image: ClassVar[tuple[str, ...]] = ()  # names of those tensors

    def __init__(self, config: TrainConfig, images: int) -> None:
        """Prepare for training on that many images."""
        super().__init__()
        self.config = config
        self.looks = 0  # how often rows were computed from the encoder

    def rows(self) -> dict[str, Tensor]:
        """Return the rows that a run cannot do without when it is continued."""
        return {}

    def take_rows(self, state: dict[str, Any]) -> None:
        """Copy rows out of a module's state, where earlier versions kept them and where loading puts them."""
        needed = self.rows()
        for name in self.per_image:
            if (found := state.pop(f"hook.{name}", None)) is not None and name in needed:
                needed[name].copy_(found)

    @classmethod
    def applies(cls, config: TrainConfig) -> bool:
        """Return whether the configuration needs this hook."""
        return True

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        """Raise ValueError if the settings of this hook do not fit the others."""

    def on_fit_start(
        self, cache: DecodedCache, images: NDArray[np.int64], cache_dir: Path | None = None, progress: bool = False
    ) -> None:
        """Compute what needs no encoder, before the first step and whenever a run is continued."""

    def on_epoch_start(self, module: TrainingModule, epoch: int) -> None:
        """Compute what needs the encoder as it is now, on every rank."""

    def extra(self, batches: Batches, step: int, joined: NDArray[np.int64]) -> Any:
        """Return what the joined batch of a step needs beside its pixels, as ``Batch.extra``."""
        return None

    def to_device(self, extra: Any, device: torch.device) -> Any:
        """Return ``extra`` with its pixels on the device."""
        return extra

    def views(
        self, batch: Batch, kinds: Sequence[ViewConfig], generator: torch.Generator, objective: nn.Module
    ) -> list[Tensor]:
        """Return this rank's views of a batch, one of each kind; parameters are drawn for the joined batch."""
        return [
            apply_views(kind, batch.canvas, sample_params(kind, batch.all_sizes, generator)[batch.share])
            for kind in kinds
        ]

    def complete_views(self, views: Tensor, objective: nn.Module) -> Tensor:
        """Add to normalized views (N, 3, R, R) of any images whatever the objective wants to know beside the pixels."""
        return views


HOOKS: Registry[type[TrainingHook]] = Registry(
    "training hook", packages=("finesight.paper.hooks",), group="finesight.training_hooks"
)


def make_hook(config: TrainConfig, images: int) -> TrainingHook:
    """Return the first registered hook that applies to the configuration, or the plain one."""
    kind = next((hook for hook in HOOKS.values() if hook.applies(config)), TrainingHook)
    return kind(config, images)


def rename_hook_state(state: dict[str, Any]) -> None:
    """Give what the hook keeps in a module's state its names of today: earlier versions had it in the module."""
    for name in [name for name in state if "." not in name and name != "steps"]:
        state[f"hook.{name}"] = state.pop(name)
