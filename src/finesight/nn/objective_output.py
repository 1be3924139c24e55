"""The output of an objective."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ObjectiveOutput:
    """What an objective computes of N images in one step. Rationale, health checks and trainer read only this.

    The mean of ``loss`` over all images of all ranks is what is minimized. GradCAM differentiates its sum with respect
    to ``pooled``: where the loss couples the images of a batch, an image's part in those of
    the others counts as its own.
    """

    loss: Tensor  # (N,) per image
    phi: Tensor  # (N, C, H, W) map of the view the loss is attributed to
    pooled: Tensor  # (N, C), or wider, what the head saw of φ
    embedding: Tensor  # (N, D) unit vectors of the online branch
    target: Tensor  # (N, D) what they were compared with, no gradient
    positive: Tensor | None = None  # (N,) similarity of the positive pair, not divided by the temperature
    metrics: dict[str, Tensor] = field(default_factory=dict)
