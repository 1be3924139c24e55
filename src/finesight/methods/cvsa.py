"""CVSA (Wu et al., 2021): views share the object but not the background, and a loss says where the object is.

No code of it is public. Here its alignment is read as follows: the cells of the query's map that agree with the key,
which is of another view, should be those that the object covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from finesight.methods.base import full_precision, register_objective
from finesight.methods.moco import MoCo, MoCoConfig
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import object_share


class CVSAConfig(MoCoConfig):
    """MoCo v2's, and how much the alignment counts beside the contrast."""

    alignment: float = Field(1.0, ge=0)


def alignment_loss(cells: Tensor, key: Tensor, share: Tensor, temperature: float) -> Tensor:
    """Return KL(object ‖ softmax over cells of their similarity to the key). (N, HW, D), (N, D), (N, HW) -> (N,)

    ``share`` is how much of each cell the object covers; the loss of an image without any object is zero.
    """
    log_share = (torch.einsum("npd,nd->np", cells, key) / temperature).log_softmax(1)
    total = share.sum(1, keepdim=True)
    wanted = share / total.clamp(min=torch.finfo(share.dtype).tiny)
    divergence = (torch.special.xlogy(wanted, wanted) - wanted * log_share).sum(1)
    return torch.where(total[:, 0] > 0, divergence, 0.0)


@register_objective(
    "cvsa",
    "crops about the object, its key on another background, and a loss that says where it is",
    paper="CVSA",
    settings={"saliency.source": "detector", "focus.source": "saliency", "views.second_paste": 1.0},
    order=20,
)
class CVSA(MoCo):
    Config = CVSAConfig
    metrics: ClassVar = {**MoCo.metrics, "alignment": "misfit of object and similarity (KL)"}
    needs_masks = True  # a fourth channel of its views says where the object is, from 0 to 1
    sees_cells = True

    def forward(
        self, views: Sequence[Tensor], generator: torch.Generator, labels: Tensor | None = None
    ) -> ObjectiveOutput:
        output = super().forward([view[:, :3] for view in views], generator, labels)
        phi = output.phi
        n, channels, height, width = phi.shape
        with full_precision(phi):
            vectors = phi.flatten(2).mT.reshape(-1, channels).to(output.pooled.dtype)  # (N*HW, C)
            cells = F.normalize(self.head(vectors), dim=1).view(n, height * width, -1)
            share = object_share(views[0][:, 3], height, width).flatten(1)
            aligned = alignment_loss(cells, output.target, share, self.config.temperature)
        metrics = {**output.metrics, "alignment": aligned.detach().mean()}
        loss = output.loss + self.config.alignment * aligned
        return replace(output, loss=loss, metrics=metrics)
