"""Cut a random part out of each image of a batch and bring it to the size of a view.

Bilinear without antialias, as torchvision's ``resized_crop(antialias=False)``: rows are sampled first and columns
after, as the grid has no rotation. Pixels are addressed by integers that stay inside the crop: unlike ``grid_sample``
with its coordinates relative to the canvas, a view does not depend in any bit on the padding or on how large the canvas
is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finesight.data.opencv_views import crop_images

Grid = tuple[Tensor, Tensor, Tensor]  # of each of R output pixels: its two source pixels, and how far between them


def crop_resize_flip(canvas: Tensor, crop: Tensor, flip: Tensor, resolution: int) -> Tensor:
    """Sample each image's crop: uint8 (N, 3, H, W) -> float32 in [0, 1] (N, 3, R, R)."""
    crop_all = crop_images if canvas.device.type == "cpu" else crop_together
    return crop_all(canvas, crop, flip, resolution)


def crop_together(canvas: Tensor, crop: Tensor, flip: Tensor, resolution: int) -> Tensor:
    """Return what ``crop_resize_flip`` says, by operations on the whole batch, as is fast on a GPU."""
    top, left, high, wide = crop.unbind(1)
    down, along = _grid(top, high, torch.zeros_like(flip), resolution), _grid(left, wide, flip, resolution)
    count, channels, height, width = canvas.shape
    rows = canvas.reshape(-1, width)  # (N*3*H, W)
    planes = torch.arange(count * channels, device=canvas.device).view(count, channels, 1) * height

    def take_rows(index: Tensor) -> Tensor:
        chosen = (planes + index[:, None]).flatten()  # (N, R) -> (N*3*R,)
        return rows.index_select(0, chosen).view(count, channels, -1, width).float()

    def take_columns(images: Tensor, index: Tensor) -> Tensor:
        return images.gather(3, index[:, None, None].expand(-1, channels, images.shape[2], -1))

    sampled = take_rows(down[0]).lerp_(take_rows(down[1]), down[2][:, None, :, None])  # (N, 3, R, W)
    return take_columns(sampled, along[0]).lerp_(take_columns(sampled, along[1]), along[2][:, None, None]).div_(255)


def _grid(start: Tensor, size: Tensor, flip: Tensor, resolution: int) -> Grid:
    target = torch.arange(resolution, device=start.device).expand(len(start), -1)
    target = torch.where(flip[:, None], resolution - 1 - target, target)
    last = (size - 1)[:, None]
    position = (target + 0.5) * (size.float() / resolution)[:, None] - 0.5
    position = torch.minimum(position.clamp_min(0), last)
    first = position.long()
    return start[:, None] + first, start[:, None] + torch.minimum(first + 1, last), position - first
