"""Pool by the branch while training: what the paper's appendix calls the interaction at training time."""

from __future__ import annotations

from torch import Tensor

from finesight.nn.pooling import Pool, upcast
from finesight.nn.poolings import RATIONALE, Pooling, find_pooling
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.rationale.config import RationaleConfig


class BranchPool(Pool):
    """Pool for the head as the encoder pools afterwards, so that the loss teaches the branch as well.

    By the mask it is Ours-DualPooling; by each projection's response, MoCo v2-Bilinear and SAM-SSL-Bilinear.
    """

    uniform = False

    def __init__(self, pooling: Pooling, channels: int, branch: FittingBranch, config: RationaleConfig) -> None:
        super().__init__(pooling.width(channels, branch.projections))
        self.pooling, self.branch, self.config = pooling, branch, config

    def forward(self, phi: Tensor) -> Tensor:
        if self.pooling.per_projection:
            return self.pooling(upcast(phi), {}, self.branch.responses(phi))
        return self.pooling(upcast(phi), {RATIONALE: branch_mask(self.branch, phi, self.config)})


def branch_pool(name: str, channels: int, branch: FittingBranch, config: RationaleConfig) -> Pool:
    """Return the training form of the named pooling."""
    pooling = find_pooling(config.pooling_form(name))
    return BranchPool(pooling, channels, branch, config) if pooling.needs_branch else Pool(channels)
