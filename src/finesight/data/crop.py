"""Cut a random part out of each image of a batch and bring it to the size of a view.

Bilinear without antialias, as torchvision's ``resized_crop(antialias=False)``: rows are sampled first and columns
after, as the grid has no rotation. Pixels are addressed by integers that stay inside the crop: unlike ``grid_sample``
with its coordinates relative to the canvas, a view does not depend in any bit on the padding or on how large the canvas
is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finesight.data.shares import blocks, in_shares

Grid = tuple[Tensor, Tensor, Tensor]  # of each of R output pixels: its two source pixels, and how far between them


def crop_resize_flip(
    canvas: Tensor, crop: Tensor, flip: Tensor, resolution: int, *, together: bool | None = None
) -> Tensor:
    """Sample each image's crop: uint8 (N, 3, H, W) -> float32 in [0, 1] (N, 3, R, R).

    The whole batch is sampled ``together``, which is faster on a GPU, or few images at a time, which is faster on a
    CPU; to the last bit it is the same.
    """
    top, left, height, width = crop.unbind(1)
    down, along = _grid(top, height, torch.zeros_like(flip), resolution), _grid(left, width, flip, resolution)
    if canvas.device.type != "cpu" if together is None else together:
        return _sample_together(canvas, down, along)
    canvas, views = canvas.contiguous(), torch.empty(*canvas.shape[:2], resolution, resolution)

    def work(share: slice) -> None:
        for rows in blocks(views, share):
            few = [(first[rows], second[rows], weight[rows]) for first, second, weight in (down, along)]
            _sample_few(canvas[rows], few[0], few[1], views[rows])

    in_shares(work, len(canvas))
    return views


def _sample_few(canvas: Tensor, down: Grid, along: Grid, views: Tensor) -> None:
    """Write into the views, reading no more columns than they need."""
    count, channels, height, width = canvas.shape
    begin, end = int(along[0].min()), int(along[1].max()) + 1
    lines = canvas.view(-1, width).numpy()  # (N*3*H, W)
    planes = torch.arange(0, len(lines), height).view(count, channels, 1)

    def take_rows(index: Tensor) -> Tensor:
        chosen = (planes + index[:, None]).numpy()  # (N, 3, R)
        return torch.from_numpy(lines.take(chosen, axis=0, mode="clip"))[..., begin:end].float()

    # NumPy takes columns about twice as fast as torch; all indices are inside, and "clip" spares their check
    sampled = take_rows(down[0]).lerp_(take_rows(down[1]), down[2][:, None, :, None]).numpy()  # (N, 3, R, W)
    right = torch.empty_like(views)
    for index, target in zip(along[:2], (views, right), strict=True):
        for image, columns, out in zip(sampled, (index - begin).numpy(), target.numpy(), strict=True):
            image.take(columns, axis=2, out=out, mode="clip")
    views.lerp_(right, along[2][:, None, None]).div_(255)


def _sample_together(canvas: Tensor, down: Grid, along: Grid) -> Tensor:
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
