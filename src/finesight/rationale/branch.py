"""The GradCAM fitting branch: K filters of 1×1 and the maximum over them (Eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.rationale.config import RationaleConfig


class FittingBranch(nn.Module):
    """Small on purpose: with K filters it can only keep what is common across images.

    PyTorch's default convolution init is kept; a larger one saturates the softmax of A from the first step.
    """

    def __init__(self, channels: int, config: RationaleConfig) -> None:
        super().__init__()
        self.normalise_input = config.input_norm == "l2"
        self.filters = nn.Conv2d(channels, config.projections, 1, bias=False)
        self.norm = nn.BatchNorm2d(config.projections) if config.branch_norm == "batch" else None

    def responses(self, phi: Tensor) -> Tensor:
        """What each projection answers at each position. (N, C, H, W) -> (N, K, H, W)"""
        with torch.autocast(phi.device.type, enabled=False):
            phi = phi.to(self.filters.weight.dtype)
            if self.normalise_input:
                phi = F.normalize(phi, dim=1)
            answers: Tensor = self.filters(phi)
            return answers if self.norm is None else F.relu(self.norm(answers))

    def forward(self, phi: Tensor) -> Tensor:
        """A_ij = max_k w_kᵀ φ_ij. (N, C, H, W) -> (N, H, W)"""
        return self.responses(phi).amax(1)
