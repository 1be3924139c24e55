"""What one step of a method hands on to the rationale, the health checks and the trainer."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ObjectiveOutput:
    """One step of an objective on N images. The rationale, the health checks and the trainer read only this.

    The mean of ``loss`` over all images of all ranks is what is minimized. GradCAM differentiates its sum with respect
    to ``pooled``: where the losses of a batch hang together (SimCLR, Barlow Twins, VICReg), an image's part in those of
    the others counts as its own.
    """

    loss: Tensor  # (N,) per image
    phi: Tensor  # (N, C, H, W) map of the view the loss is attributed to
    pooled: Tensor  # (N, C), or wider, what the head saw of φ
    embedding: Tensor  # (N, D) unit vectors of the online branch
    target: Tensor  # (N, D) what they were compared with, no gradient
    positive: Tensor | None = None  # (N,) similarity of the positive pair, not divided by the temperature
    average_pooled: bool = True  # False: GradCAM needs the gradient of the whole map
    metrics: dict[str, Tensor] = field(default_factory=dict)
