"""GradCAM of a self-supervised loss (Eq. 3), always in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import limit_lengths, upcast


def gradcam(output: ObjectiveOutput, score: Tensor, *, average_pooled: bool, limited: bool = False) -> Tensor:
    """Return the signed map of the (N,) scores by the cheapest way. -> (N, H, W)

    ``average_pooled`` says whether the scores see φ only through its average (``Objective.average_pooled``). With
    ``limited``, meant for φ that is signed itself, tokens that are far too long count as if they were shortened.
    """
    if average_pooled:
        return pooled_gradcam(output.phi, output.pooled, score, limited=limited)
    return map_gradcam(output.phi, score, limited=limited)


def pooled_gradcam(phi: Tensor, pooled: Tensor, score: Tensor, *, limited: bool = False) -> Tensor:
    """Compute (∂s/∂φ_ij)ᵀ φ_ij, not rectified, from the gradient at the average-pooled vector. -> (N, H, W)

    With u = mean_ij φ_ij and a score that sees only u, ∂s/∂φ_ij = (1/HW) ∂s/∂u in every cell: one backward through the
    head is enough, and no C×H×W gradient is kept. ``score`` is (N,): one scalar per image.
    """
    cells = phi.shape[2] * phi.shape[3]
    with torch.autocast(phi.device.type, enabled=False):  # the backward too: its products would be half precision
        (g,) = torch.autograd.grad(score.sum(), pooled, retain_graph=True)  # (N, C)
        return torch.einsum("nc,nchw->nhw", upcast(g), _counted(phi, limited=limited)) / cells


def map_gradcam(phi: Tensor, score: Tensor, *, limited: bool = False) -> Tensor:
    """Compute the same from the gradient of the whole map, for pooling that is not an average. -> (N, H, W)"""
    with torch.autocast(phi.device.type, enabled=False):
        (g,) = torch.autograd.grad(score.sum(), phi, retain_graph=True)  # (N, C, H, W)
        return (upcast(g) * _counted(phi, limited=limited)).sum(1)


def _counted(phi: Tensor, *, limited: bool) -> Tensor:
    return limit_lengths(upcast(phi)) if limited else upcast(phi)
