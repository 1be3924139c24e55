"""From GradCAM and attention to L_KL (Eq. 5-6), and the whole of LCR as one module."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.nn.distributed import world
from finesight.nn.norm import held_statistics
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import attention_mask, limit_lengths
from finesight.rationale.branch import FittingBranch
from finesight.rationale.config import RationaleConfig
from finesight.rationale.gradcam import gradcam

# what ``RationaleOutput.metrics`` holds -> words for people
RATIONALE_METRICS = {
    "kl": "attention misfit (KL)",
    "kl_target_uniform": "GradCAM information",
    "kl_attention_uniform": "attention information",
    "mask_entropy": "mask entropy",
}
FLAT = 1e-6  # a map whose spread is below this share of its maximum is constant up to rounding


def _scale_gradient(phi: Tensor, share: float) -> Tensor:
    """Return φ such that only a share of the gradient flows back."""
    fixed = phi.detach()
    return fixed if share == 0 else phi if share == 1 else fixed + share * (phi - fixed)


@dataclass(frozen=True)
class RationaleOutput:
    """The loss of a step, the two maps it compares, and metrics."""

    loss: Tensor  # ()
    target: Tensor  # (N, H, W) G, scaled
    attention: Tensor  # (N, H, W) A
    metrics: dict[str, Tensor]


def score_of(output: ObjectiveOutput, config: RationaleConfig) -> Tensor:
    """Return the (N,) scalars that GradCAM differentiates."""
    if config.score == "positive":
        if output.positive is None:
            raise ValueError("this objective has no positive logit: use score 'loss' or 'negative_loss'")
        return output.positive
    return output.loss if config.score == "loss" else -output.loss


def scaled_target(signed: Tensor, config: RationaleConfig) -> Tensor:
    """Rectify and scale the signed map; per image except for ``batch_mean``: of all ranks. (N, H, W) -> (N, H, W)

    Left at the size the batch-mean loss gives it, G/τ is so flat that its softmax is uniform to within 0.4 %: nothing
    about *where* would reach the branch. Scaling each image's map to a maximum of one is what teaches it.
    """
    g = F.relu(signed) if config.rectify == "relu" else signed.abs()
    if config.target_scale == "batch_mean":
        return g / (g.shape[0] * world()[1])
    if config.target_scale == "cells":
        return g * (g.shape[1] * g.shape[2])
    if config.target_scale in ("max", "std"):
        g = g / g.amax((1, 2), keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
    if config.target_scale == "std":
        g = g / g.std((1, 2), keepdim=True, correction=0).clamp(min=FLAT)
    return g


def _distributions(maps: Tensor, config: RationaleConfig) -> Tensor:
    """Return the log-softmax over all positions, or over each row. (N, H, W) -> (N, H*W) or (N, H, W)"""
    flat = maps.flatten(1) if config.softmax_over == "positions" else maps
    return F.log_softmax(flat / config.tau, dim=-1)


def rationale_kl(target: Tensor, attention: Tensor, config: RationaleConfig) -> Tensor:
    """Return L_KL of Eq. 6 in either direction, reduced as configured. (N, H, W), (N, H, W) -> ()

    Gradients are averaged over ranks, so each rank's part of a sum counts as many times as there are ranks.
    """
    if config.attention_scale != "raw":
        attention = attention_mask(attention, over=config.attention_scale)
    log_g, log_a = _distributions(target, config), _distributions(attention, config)
    p, q = (log_g, log_a) if config.divergence == "target_attention" else (log_a, log_g)
    terms = p.exp() * (p - q)
    if config.reduction == "elements":
        return terms.mean()
    return terms.sum() / len(terms) if config.reduction == "mean" else terms.sum() * world()[1]


class Rationale(nn.Module):
    """Learns the rationale beside any objective, from φ, the pooled vector and the per-image loss.

    ``signed`` is the backbone's: tokens that are far too long must capture neither target nor branch.
    """

    def __init__(self, channels: int, config: RationaleConfig, *, signed: bool = False) -> None:
        super().__init__()
        self.config, self.signed = config, signed
        self.branch = FittingBranch(channels, config)
        self.study = nn.ModuleDict(
            {str(k): FittingBranch(channels, config.model_copy(update={"projections": k})) for k in config.study}
        )

    def forward(self, output: ObjectiveOutput, *, average_pooled: bool) -> RationaleOutput:
        """Fit the branch to the GradCAM of a step. ``average_pooled`` is the objective's."""
        config, phi = self.config, output.phi
        with held_statistics(config.gradient == "own"):
            signed = gradcam(output, score_of(output, config), average_pooled=average_pooled, limited=self.signed)
        target = scaled_target(signed, config)
        if config.detach_target:
            target = target.detach()
        if self.signed:
            phi = limit_lengths(phi)  # as the encoder's masks do; a branch whose input is normalized sees no difference
        attention = self.branch(_scale_gradient(phi, config.encoder_gradient))
        loss = rationale_kl(target, attention, config)
        metrics = rationale_metrics(loss, target, attention, config.tau)
        for branch in self.study.values():
            loss = loss + rationale_kl(target.detach(), branch(phi.detach()), config)
        return RationaleOutput(loss, target.detach(), attention.detach(), metrics)


@torch.no_grad()
def rationale_metrics(loss: Tensor, target: Tensor, attention: Tensor, tau: float) -> dict[str, Tensor]:
    """Return the loss, how far both maps are from uniform, in nats, and the entropy of the mask (1 = uniform)."""
    mask = attention_mask(attention).flatten(1)  # whatever the divisor: a share has no scale
    total = mask.sum(1, keepdim=True)
    share = torch.where(total > 0, mask / total, 1 / mask.shape[1])
    entropy = -(share * share.clamp(min=1e-12).log()).sum(1).mean() / math.log(max(2, share.shape[1]))
    return {
        "kl": loss.detach(),
        "kl_target_uniform": kl_from_uniform(target, tau),
        "kl_attention_uniform": kl_from_uniform(attention, tau),
        "mask_entropy": entropy,
    }


def kl_from_uniform(maps: Tensor, tau: float) -> Tensor:
    """Return the mean KL(softmax(map/τ) ‖ uniform) in nats; zero for constant maps. (N, H, W) -> ()"""
    log_p = F.log_softmax(maps.flatten(1) / tau, dim=1)
    return (log_p.exp() * log_p).sum(1).mean() + math.log(log_p.shape[1])
