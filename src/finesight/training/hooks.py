"""The hook of a training: what a system may change in its batches, its views and before an epoch.

Most systems change nothing and use the base class itself. Others subclass it and register the class; the first one
that applies to a configuration is used. The hook of the paper's Table 3 is in ``finesight.paper.hooks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """What every training has: plain views of plain batches. Its buffers are part of the checkpoint."""

    def __init__(self, config: TrainConfig, images: int) -> None:
        """Prepare for training on that many images."""
        super().__init__()
        self.config = config

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
    """Give the hook's buffers in a module's state their names of today: earlier versions had them in the module."""
    for name in [name for name in state if "." not in name and name != "steps"]:
        state[f"hook.{name}"] = state.pop(name)
