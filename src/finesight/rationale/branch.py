"""The GradCAM fitting branch: K filters of 1×1 and the maximum over them (Eq. 4), or one of its ablations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.nn.pooling import attention_mask
from finesight.rationale.config import RationaleConfig


class FittingBranch(nn.Module):
    """Predicts GradCAM by K filters, so few that it can only keep what is common across images.

    PyTorch's default convolution init is kept; a larger one saturates the softmax of A from the first step.
    """

    def __init__(self, channels: int, config: RationaleConfig) -> None:
        super().__init__()
        self.normalize_input = config.input_norm == "l2"
        self.projections = config.projections
        self.filters = nn.Conv2d(channels, config.projections, 1, bias=False)
        self.norm = nn.BatchNorm2d(config.projections) if config.branch_norm == "batch" else None
        self.mix = nn.Conv2d(config.projections, 1, 1) if config.form == "mlp" else None
        self.register_buffer("kept", torch.ones(config.projections, dtype=torch.bool) if config.keep != "all" else None)

    def responses(self, phi: Tensor) -> Tensor:
        """Return the response of each projection at each position. (N, C, H, W) -> (N, K, H, W)"""
        with torch.autocast(phi.device.type, enabled=False):
            phi = phi.to(self.filters.weight.dtype)
            if self.normalize_input:
                phi = F.normalize(phi, dim=1)
            responses: Tensor = self.filters(phi)
            return responses if self.norm is None else F.relu(self.norm(responses))

    def forward(self, phi: Tensor) -> Tensor:
        """Return A_ij = max_k w_kᵀ φ_ij over the projections that are kept. (N, C, H, W) -> (N, H, W)

        The ablation ``mlp`` has a second layer in place of the maximum.
        """
        responses = self.responses(phi)
        if self.mix is not None:
            with torch.autocast(phi.device.type, enabled=False):
                mixed: Tensor = self.mix(F.relu(responses))
                return mixed.squeeze(1)
        if isinstance(self.kept, Tensor):
            responses = responses.masked_fill(~self.kept[:, None, None], -torch.inf)
        return responses.amax(1)

    def keep(self, projections: Sequence[int]) -> None:
        """Take the maximum over these projections alone from now on."""
        assert isinstance(self.kept, Tensor)
        self.kept.fill_(False)
        self.kept[list(projections)] = True


def branch_mask(branch: FittingBranch, phi: Tensor, config: RationaleConfig) -> Tensor:
    """Return A' of Eq. 8 as configured. (N, C, H, W) -> (N, H, W)

    Taken literally (``mask_divisor="max"``) all of it is negative where all of A is. There its magnitude is the mask:
    the cells weigh as Eq. 8 says, and the feature keeps its sign.
    """
    mask = attention_mask(branch(phi), over=config.mask_range, divisor=config.mask_divisor)
    return mask.abs().pow(config.mask_power)
