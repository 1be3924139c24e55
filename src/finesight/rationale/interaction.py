"""The branch as a part of training's own pooling: what the paper's appendix calls the interaction at training time."""

from __future__ import annotations

from torch import Tensor

from finesight.nn.pooling import Pool, bilinear, pool, wide
from finesight.nn.pooling_config import TrainPooling
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.rationale.config import RationaleConfig


class BilinearPool(Pool):
    """Every projection pools φ by its own response (MoCo v2-Bilinear, SAM-SSL-Bilinear): K times as wide."""

    uniform = False

    def __init__(self, channels: int, branch: FittingBranch) -> None:
        super().__init__(channels * branch.projections)
        self.branch = branch

    def forward(self, phi: Tensor) -> Tensor:
        return bilinear(wide(phi), self.branch.responses(phi))


class MaskedPool(Pool):
    """φ weighed by the mask it is tested with (Ours-DualPooling): the branch is taught by the contrast as well."""

    uniform = False

    def __init__(self, channels: int, branch: FittingBranch, config: RationaleConfig) -> None:
        super().__init__(channels)
        self.branch, self.config = branch, config

    def forward(self, phi: Tensor) -> Tensor:
        return pool(wide(phi), branch_mask(self.branch, phi, self.config))


def branch_pool(name: TrainPooling, channels: int, branch: FittingBranch, config: RationaleConfig) -> Pool:
    """The named one."""
    if name == "bilinear":
        return BilinearPool(channels, branch)
    return MaskedPool(channels, branch, config) if name == "rationale" else Pool(channels)
