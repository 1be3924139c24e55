"""Objects on other backgrounds: cut out by a soft saliency map and pasted before the colors are changed.

As in ``views``, what is random is drawn first, on the CPU, for the joined batch (``sample_paste``) and applied
afterwards (``paste``). Maps are cropped with the same parameters as the images they belong to, and everything
is per image: a view is the same whatever else is in its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from finesight.data.rows import Rows

BACKDROP, GRAY, TEXTURE = range(3)  # another image's background, one gray level, two-colored noise

_NOISE = 8  # cells a side of the drawn noise
_GRID = 16  # cells a side of the finest fill, a power of two
_TRUST = 0.05  # share of background in a cell at which it counts as much as the coarser cells around it
_LEAST = 1e-4  # the same for a whole image against its plain mean: only an image that is all object has no better


def crop_maps(maps: Tensor, sizes: Tensor, crop: Tensor, flip: Tensor, resolution: int) -> Tensor:
    """Crop the map of each image to what its view shows: uint8 (N, S, S) -> float32 in [0, 1] (N, R, R).

    A map covers its whole image, stretched to a square; ``sizes`` (N, 2) are the images' height and width,
    ``crop`` (N, 4) and ``flip`` (N,) the view's. The map goes on around the crop, so it is clamped at its own
    edge, where ``crop_resize_flip`` clamps at the edge of the crop.
    """
    count, rows, columns = maps.shape
    height, width = sizes.to(maps.device).long().unbind(1)
    top, left, crop_height, crop_width = crop.to(maps.device).unbind(1)
    target = torch.arange(resolution, device=maps.device).expand(count, -1)  # (N, R)
    mirrored = torch.where(flip.to(maps.device)[:, None], resolution - 1 - target, target)
    upper, lower, down = _neighbors(target, top, crop_height, height, rows)
    before, after, along = _neighbors(mirrored, left, crop_width, width, columns)

    def take_rows(index: Tensor) -> Tensor:
        return maps.gather(1, index[:, :, None].expand(-1, -1, columns)).float()

    def take_columns(sampled: Tensor, index: Tensor) -> Tensor:
        return sampled.gather(2, index[:, None].expand(-1, resolution, -1))

    sampled = take_rows(upper).lerp_(take_rows(lower), down[:, :, None])  # (N, R, S)
    return take_columns(sampled, before).lerp_(take_columns(sampled, after), along[:, None]).div_(255)


def _neighbors(target: Tensor, start: Tensor, size: Tensor, whole: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each output pixel, its two map cells and how far it lies between them, (N, R) each.

    Output pixel t lies at (start + (t + ½) size / R) S / whole − ½ of the map; as a fraction of integers, so
    that large images cost no precision.
    """
    resolution = target.shape[1]
    divisor = (2 * resolution * whole)[:, None]
    inside = 2 * resolution * start[:, None] + (2 * target + 1) * size[:, None]
    position = (inside * cells - divisor // 2).clamp_min(0)
    position = torch.minimum(position, (cells - 1) * divisor)
    first = position.div(divisor, rounding_mode="floor")
    return first, (first + 1).clamp_max(cells - 1), (position - first * divisor) / divisor


@dataclass(frozen=True)
class PasteParams(Rows):
    """Everything random about the backgrounds of N views, one row each."""

    paste: Tensor  # (N,) bool
    kind: Tensor  # (N,) int64: BACKDROP, GRAY or TEXTURE
    level: Tensor  # (N,) float32 in [0, 1): the gray
    noise: Tensor  # (N, 3, 8, 8) float32 in [0, 1): the texture
    crop: Tensor  # (N, 4) int64: top, left, height, width in the backdrop
    flip: Tensor  # (N,) bool: of the backdrop


def sample_paste(
    probability: float, kinds: Sequence[float], backdrop_crop: Tensor, backdrop_flip: Tensor, generator: torch.Generator
) -> PasteParams:
    """Draw whether and on what each of N objects is pasted; ``kinds`` are the weights of the three kinds.

    All is drawn for every row, so neither the probability nor the weights shift what is drawn afterwards.
    """
    if len(kinds) != 3 or not all(math.isfinite(kind) and kind >= 0 for kind in kinds) or not any(kinds):
        raise ValueError(f"the kinds of background need three weights, none negative and not all zero, got {kinds}")
    first, second, total = accumulate(kinds)
    edges = torch.tensor([first / total, second / total], dtype=torch.float64)  # where the next kind begins in [0, 1)
    count = len(backdrop_crop)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, dtype=torch.float64)

    return PasteParams(
        paste=uniform() < probability,
        kind=torch.bucketize(uniform(), edges, right=True),
        level=uniform().float(),
        noise=uniform(3, _NOISE, _NOISE).float(),
        crop=backdrop_crop.cpu(),
        flip=backdrop_flip.cpu(),
    )


def usable(alpha: Tensor, least: float = 0.02, most: float = 0.9) -> Tensor:
    """Whether a view's mask is neither nearly empty nor nearly full: (N, R, R) -> (N,) bool."""
    share = alpha.mean(dim=(1, 2))
    return (share >= least) & (share <= most)


def background_of(images: Tensor, alpha: Tensor) -> Tensor:
    """Replace the object of an image by what surrounds it: (N, 3, R, R), (N, R, R) -> (N, 3, R, R).

    Normalized convolution on a pyramid: a cell is the mean of its background, and the less background it has
    the more it takes from the coarser cells around it.
    """
    seen = (1 - alpha)[:, None]  # (N, 1, R, R)
    cells = [F.adaptive_avg_pool2d(part, _GRID) for part in (images * seen, seen, images)]
    pyramid = [torch.cat(cells, dim=1)]  # (N, 3 + 1 + 3, 16, 16)
    while pyramid[-1].shape[-1] > 1:
        pyramid.append(F.avg_pool2d(pyramid[-1], 2))
    fill, trust = pyramid[-1][:, 4:], _LEAST  # the plain mean, (N, 3, 1, 1)
    for level in reversed(pyramid):
        fill = (level[:, :3] + trust * _enlarge(fill, level.shape[-1])) / (level[:, 3:4] + trust)
        trust = _TRUST
    return torch.lerp(images, _enlarge(fill, images.shape[-1]).clamp_(0, 1), alpha[:, None])


def _enlarge(images: Tensor, side: int, mode: str = "bilinear") -> Tensor:
    return F.interpolate(images, size=(side, side), mode=mode, align_corners=False)


def paste(
    images: Tensor, alpha: Tensor, backdrops: Tensor | None, backdrop_alpha: Tensor | None, params: PasteParams
) -> Tensor:
    """α · image + (1 − α) · background in the rows drawn for it whose mask is usable; the others stay as they are.

    ``images`` and ``backdrops`` are views in [0, 1] (N, 3, R, R), each with its alpha (N, R, R). Backdrops may
    be left out if no row is pasted on one. Which rows need a background is decided by the parameters alone, so
    a device is not waited for; whether a mask is usable decides what is kept.
    """
    drawn, kinds = params.paste.cpu(), params.kind.cpu()
    params, keep = params.to(images.device), usable(alpha)
    result = images.clone()
    for kind in (BACKDROP, GRAY, TEXTURE):
        rows = (drawn & (kinds == kind)).nonzero().squeeze(1).to(images.device)
        if len(rows):
            ours = images[rows]
            background = _background(kind, rows, backdrops, backdrop_alpha, params, images.shape[-1])
            pasted = torch.lerp(background.expand_as(ours), ours, alpha[rows][:, None])  # exact where α is 0 or 1
            result.index_copy_(0, rows, torch.where(keep[rows].view(-1, 1, 1, 1), pasted, ours))
    return result


def _background(
    kind: int, rows: Tensor, backdrops: Tensor | None, backdrop_alpha: Tensor | None, params: PasteParams, side: int
) -> Tensor:
    """Backgrounds of n rows, all of one kind: (n, 3, R, R), or (n, 1, 1, 1) for a gray."""
    if kind == GRAY:
        return params.level[rows].view(-1, 1, 1, 1)
    if kind == TEXTURE:
        return _texture(params.noise[rows], side)
    if backdrops is None or backdrop_alpha is None:
        raise ValueError("a row is to be pasted on another image's background, but there are no backdrops")
    return background_of(backdrops[rows], backdrop_alpha[rows])


def _texture(noise: Tensor, side: int) -> Tensor:
    """Three octaves of smooth noise between two colors: (n, 3, 8, 8) -> (n, 3, R, R).

    Each channel is an octave, repeated to be finer, and two of the noise's corners are the colors: a channel
    of noise for each of red, green and blue would be a rainbow, which no photograph is.
    """
    field = torch.full_like(noise[:, :1, :1, :1], 0.5)
    for octave in range(3):
        finer = 2**octave  # and as many times weaker
        repeated = noise[:, octave : octave + 1].repeat(1, 1, finer, finer)
        field = field + (_enlarge(repeated, side, "bicubic") - 0.5) / finer
    return torch.lerp(noise[:, :, :1, :1], noise[:, :, -1:, -1:], field.clamp_(0, 1))  # (n, 1, R, R) chooses
