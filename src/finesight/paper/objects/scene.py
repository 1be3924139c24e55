"""The images of a step with what is known of where their objects are, and views of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from finesight.data.crop import crop_resize_flip
from finesight.data.views import ViewConfig, apply_views, sample_params
from finesight.paper.objects.boxes import place_in_boxes
from finesight.paper.objects.compose import PasteParams, crop_maps, paste, sample_paste


@dataclass(frozen=True)
class Backdrop:
    """Other images; objects are pasted on their backgrounds."""

    canvas: Tensor  # (n, 3, H, W) uint8, this rank's
    all_sizes: Tensor  # (N, 2) of the joined batch
    images: Tensor  # (N,) positions among the images that are trained on


@dataclass(frozen=True)
class Scene:
    """Randomness is drawn for the joined batch, so that every rank draws alike; pixels and maps are this rank's."""

    canvas: Tensor  # (n, 3, H, W) uint8
    all_sizes: Tensor  # (N, 2)
    share: slice  # this rank's rows of N
    boxes: Tensor | None = None  # (N, 4): where crops are drawn
    beta: float = 1.0
    maps: Tensor | None = None  # (n, S, S) uint8: where the objects are
    backdrop: Backdrop | None = None
    backdrop_maps: Tensor | None = None  # (n, S, S)

    def view(self, kind: ViewConfig, generator: torch.Generator, *, masked: bool = False) -> Tensor:
        """Return a view of every image, (n, 3, R, R), or (n, 4, R, R) with the object's mask if ``masked``."""
        place = None if self.boxes is None else partial(place_in_boxes, boxes=self.boxes.cpu(), beta=self.beta)
        params = sample_params(kind, self.all_sizes, generator, place)
        if self.maps is None:
            return apply_views(kind, self.canvas, params[self.share])
        drawn = None
        if kind.paste > 0 and self.backdrop is not None:
            other = sample_params(kind, self.backdrop.all_sizes, generator)
            drawn = sample_paste(kind.paste, kind.backdrops, other.crop, other.flip, generator)[self.share]
        params = params[self.share]
        sizes = self.all_sizes[self.share]
        alpha = crop_maps(self.maps, sizes, params.crop, params.flip, kind.resolution)
        compose = None if drawn is None else partial(self._paste, kind=kind, alpha=alpha, drawn=drawn)
        images = apply_views(kind, self.canvas, params, compose)
        return torch.cat([images, alpha[:, None]], dim=1) if masked else images

    def _paste(self, images: Tensor, kind: ViewConfig, alpha: Tensor, drawn: PasteParams) -> Tensor:
        assert self.backdrop is not None
        assert self.backdrop_maps is not None
        crop, flip = drawn.crop.to(images.device), drawn.flip.to(images.device)
        behind = crop_resize_flip(self.backdrop.canvas, crop, flip, kind.resolution)
        sizes = self.backdrop.all_sizes[self.share]
        return paste(images, alpha, behind, crop_maps(self.backdrop_maps, sizes, crop, flip, kind.resolution), drawn)
