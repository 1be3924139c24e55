"""ContrastiveCrop (Peng et al., 2022): crops that keep to a box around what the network finds interesting."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

NO_BOX = -1.0  # in place of a box that is not known yet: the crop is an ordinary one
CENTER = (0.25, 0.25, 0.75, 0.75)


class FocusConfig(BaseModel):
    """Where crops are drawn. The defaults are the authors', once a source is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Literal["none", "energy", "rationale", "saliency", "center"] = "none"  # of the boxes
    every_n_epochs: int | None = Field(None, ge=1)  # new boxes; None: every fifth of the run
    threshold: float = Field(0.1, ge=0, lt=1)  # of a map from 0 to 1: what is above lies in the box
    beta: float = Field(0.6, gt=0)  # below 1, centers keep to the box's edges


def boxes_of(maps: Tensor, threshold: float, resolution: int) -> Tensor:
    """The extent of what is above the threshold, as shares of the image. (N, H, W) -> (N, 4) top, left, bottom, right

    A map is brought to [0, 1] and to ``resolution`` pixels before; a constant one says nothing: its box is everything.
    """
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = torch.where(high > low, (maps - low) / (high - low), 1.0)
    fine = F.interpolate(maps[:, None], size=(resolution, resolution), mode="bilinear", align_corners=False)[:, 0]
    inside = fine > threshold
    inside |= ~inside.any((1, 2), keepdim=True)  # a peak between two coarse pixels: nothing was seen of it
    spans = [_extent(inside.any(2)), _extent(inside.any(1))]  # rows, columns: (N, 2) each
    return torch.stack(spans, dim=2).flatten(1) / resolution


def _extent(inside: Tensor) -> Tensor:
    """First, and one past the last, of the true places of each row. (N, R) -> (N, 2)"""
    places = torch.arange(inside.shape[1], device=inside.device).expand_as(inside)
    first = torch.where(inside, places, inside.shape[1]).amin(1)
    return torch.stack([first, torch.where(inside, places, -1).amax(1) + 1], dim=1)


def focused_corners(boxes: Tensor, sizes: Tensor, crop: Tensor, beta: float, generator: torch.Generator) -> Tensor:
    """Where crops of that size begin so that their centers lie between a box's edges, the crops inside the image.

    Both edges are clamped to what the crop's size allows, and the place between them is Beta(β, β). In float64: a gamma
    variate of a small β is often far below what float32 can hold. (N, 4), (N, 2), (N, 2) -> (N, 2)
    """
    room = sizes - crop
    edges = (boxes.double().view(-1, 2, 2) * sizes[:, None] - crop[:, None] / 2).clamp(min=0)  # (N, low and high, 2)
    low, high = torch.minimum(edges, room[:, None]).unbind(1)
    shape = torch.full((2, *crop.shape), beta, dtype=torch.float64)
    drawn: Tensor = torch._standard_gamma(shape, generator=generator)
    a, b = drawn.clamp(min=torch.finfo(torch.float64).tiny).unbind(0)
    return low + (high - low) * (a / (a + b))
