"""ContrastiveCrop (Peng et al., 2022): crops that keep to a box around what the network finds interesting."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NO_BOX = -1.0  # in place of a box that is not known yet: the crop is drawn as without boxes
CENTER = (0.25, 0.25, 0.75, 0.75)


def boxes_of(maps: Tensor, threshold: float, resolution: int) -> Tensor:
    """Return the extent of what is above the threshold: (N, H, W) -> (N, 4) top, left, bottom, right in [0, 1].

    A map is scaled to [0, 1] and to ``resolution`` pixels before. The box of a constant map is the whole image.
    """
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = torch.where(high > low, (maps - low) / (high - low), 1.0)
    fine = F.interpolate(maps[:, None], size=(resolution, resolution), mode="bilinear", align_corners=False)[:, 0]
    inside = fine > threshold
    inside |= ~inside.any((1, 2), keepdim=True)  # a peak between two coarse pixels is lost
    spans = [_extent(inside.any(2)), _extent(inside.any(1))]  # rows, columns: (N, 2) each
    return torch.stack(spans, dim=2).flatten(1) / resolution


def _extent(inside: Tensor) -> Tensor:
    """Return the first true position of each row and one past the last. (N, R) -> (N, 2)"""
    positions = torch.arange(inside.shape[1], device=inside.device).expand_as(inside)
    first = torch.where(inside, positions, inside.shape[1]).amin(1)
    return torch.stack([first, torch.where(inside, positions, -1).amax(1) + 1], dim=1)


def focused_corners(boxes: Tensor, sizes: Tensor, crop: Tensor, beta: float, generator: torch.Generator) -> Tensor:
    """Draw where crops of that size begin: their centers lie in the boxes, the crops inside the images.

    Both edges of a box are clamped to what the crop's size allows; between them the corner is Beta(β, β) distributed,
    in float64: a gamma variate of a small β is often too small for float32. (N, 4), (N, 2), (N, 2) -> (N, 2)
    """
    room = sizes - crop
    edges = (boxes.double().view(-1, 2, 2) * sizes[:, None] - crop[:, None] / 2).clamp(min=0)  # (N, low and high, 2)
    low, high = torch.minimum(edges, room[:, None]).unbind(1)
    shape = torch.full((2, *crop.shape), beta, dtype=torch.float64)
    drawn: Tensor = torch._standard_gamma(shape, generator=generator)
    a, b = drawn.clamp(min=torch.finfo(torch.float64).tiny).unbind(0)
    return low + (high - low) * (a / (a + b))


def place_in_boxes(
    corners: Tensor, sizes: Tensor, crop: Tensor, generator: torch.Generator, *, boxes: Tensor, beta: float
) -> Tensor:
    """Return corners drawn by ``focused_corners`` for images whose box is known, the given ones for the others."""
    focused = focused_corners(boxes, sizes, crop, beta, generator).round()
    return torch.where(boxes[:, :1] == NO_BOX, corners, focused)
