"""The encoder as one graph: pixels in, feature, plain average and attention out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finesight.features.encoder import Encoder
from finesight.features.onnx_runtime import ATTENTION, RESPONSES, output_names, vector_outputs
from finesight.nn.poolings import ATTENTION as OWN_ATTENTION
from finesight.nn.poolings import find_pooling


class Graph(nn.Module):
    """What ``Encoder.encode`` does with regions, in operations that a graph for any batch and size can hold."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, *, responses: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        pooling = find_pooling(encoder.config.pooling)
        self.attends, self.earlier = pooling.mask == OWN_ATTENTION, pooling.needs_earlier
        self.names, self.poolings = output_names(pooling, responses=responses), vector_outputs(pooling)
        self.register_buffer("mean", 255 * torch.tensor(encoder.config.mean).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(encoder.config.std).view(3, 1, 1))
        self.eval()

    def forward(self, images: Tensor, region: Tensor) -> tuple[Tensor, ...]:
        """Return what ``names`` lists, and φ (N, C, h, w), of uint8 RGB (N, H, W, 3) and shares (N, H, W)."""
        views = (images.permute(0, 3, 1, 2).float() - self.mean) / self.std
        made = self.encoder.backbone.outputs(views, attention=self.attends, earlier=self.earlier)
        phi = made.phi
        share = cell_share(region, phi.shape[2], phi.shape[3])
        output = self.encoder.pool(made, tuple(self.poolings.values()), regions=share)
        outputs = {name: output.features[pooling] for name, pooling in self.poolings.items()}
        outputs[ATTENTION] = output.attention
        if self.encoder.branch is not None and RESPONSES in self.names:
            outputs[RESPONSES] = self.encoder.branch.responses(self.encoder.pooler.limited(made).phi)
        return (*(outputs[name] for name in self.names), phi)


def cell_share(region: Tensor, rows: int, columns: int) -> Tensor:
    """Compute ``object_share`` by products of matrices: a graph of any size cannot hold adaptive pooling.

    (N, H, W) -> (N, rows, columns)
    """
    return _bins(rows, region.shape[1]) @ region @ _bins(columns, region.shape[2]).T


def _bins(cells: int, pixels: int) -> Tensor:
    """Return the weights by which each cell is a mean of pixels; each row sums to 1. -> (cells, pixels)"""
    cell, pixel = torch.arange(cells)[:, None], torch.arange(pixels)[None]
    first, end = cell * pixels // cells, ((cell + 1) * pixels + cells - 1) // cells
    inside = ((pixel >= first) & (pixel < end)).float()
    return inside / inside.sum(1, keepdim=True)
