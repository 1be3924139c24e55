"""The encoder as one graph: pixels in, feature, plain average and attention out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finesight.features.encoder import Encoder
from finesight.features.onnx_names import RESPONSES, output_names
from finesight.nn.pooling import attention_mask, energy_map, pool_by_name


class Graph(nn.Module):
    """What ``Encoder.encode`` does with regions, in operations that a graph for any batch and size can hold."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, *, responses: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.names = output_names(encoder.config.pooling, responses=responses)
        self.register_buffer("mean", 255 * torch.tensor(encoder.config.mean).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(encoder.config.std).view(3, 1, 1))
        self.eval()

    def forward(self, images: Tensor, region: Tensor) -> tuple[Tensor, ...]:
        """uint8 RGB (N, H, W, 3), shares (N, H, W) -> what ``names`` says, and φ (N, C, h, w)."""
        encoder = self.encoder
        phi = encoder.backbone((images.permute(0, 3, 1, 2).float() - self.mean) / self.std)
        cover = cell_share(region, phi.shape[2], phi.shape[3])
        masks, answers = {"energy": attention_mask(energy_map(phi))}, None
        if encoder.branch is not None:
            masks["rationale"] = encoder.mask(phi)
            answers = encoder.branch.responses(phi)
        made = {"attention": masks.get("rationale", masks["energy"]), RESPONSES: answers}
        pooled = {"feature": encoder.config.pooling}
        outputs = []
        for name in self.names:
            value = made.get(name)
            if value is None:
                value = pool_by_name(pooled.get(name, name), phi, masks, answers, cover)
            outputs.append(value)
        return (*outputs, phi)


def cell_share(region: Tensor, rows: int, columns: int) -> Tensor:
    """``object_share`` in products of matrices: a graph of any size cannot hold adaptive pooling.

    (N, H, W) -> (N, rows, columns)
    """
    return _bins(rows, region.shape[1]) @ region @ _bins(columns, region.shape[2]).T


def _bins(cells: int, pixels: int) -> Tensor:
    """Which pixels a cell is the mean of; each row sums to 1. -> (cells, pixels)"""
    cell, pixel = torch.arange(cells)[:, None], torch.arange(pixels)[None]
    first, end = cell * pixels // cells, ((cell + 1) * pixels + cells - 1) // cells
    inside = ((pixel >= first) & (pixel < end)).float()
    return inside / inside.sum(1, keepdim=True)
