"""The tensor operations of ``nn.poolings``: masks, weighted and generalized means, two maps, bilinear features."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate, normalize

GEM_POWER = 3.0
EPSILON = 1e-7  # the paper's 1e-7 of A'
LEAST = 1e-6  # GeM sees no smaller activation
OUTLIER = 3.0  # deviations above the median of an image's cells: longer tokens are artefacts, and are shortened
DEVIATION = 1.4826  # of normal numbers, in median distances from the median


def attention_mask(
    attention: Tensor,
    *,
    over: Literal["image", "batch"] = "image",
    divisor: Literal["shifted_max", "max"] = "shifted_max",
) -> Tensor:
    """Return A' = (A − min A) / (1e-7 + max A), Eq. 8. (N, H, W) -> (N, H, W)

    Dividing by the maximum of the *shifted* map keeps the mask in [0, 1] even where all of A is negative. A range over
    the batch makes a feature depend on its batch-mates; it is here because the released code does it.
    """
    dims = (1, 2) if over == "image" else (0, 1, 2)
    shifted = attention - attention.amin(dims, keepdim=True)
    largest = (shifted if divisor == "shifted_max" else attention).amax(dims, keepdim=True)
    return shifted / (EPSILON + largest)


def energy_map(phi: Tensor, *, signed: bool = False) -> Tensor:
    """Return channel energy, the label-free control every learned mask must beat. (N, C, H, W) -> (N, H, W)

    It is Σ_c φ; of a ``signed`` map, in which that cancels, Σ_c max(φ, 0), and no cell is an outlier.
    """
    return limit_outliers(limit_lengths(phi).clamp(min=0).sum(1)) if signed else phi.sum(1)


def limit_outliers(values: Tensor) -> Tensor:
    """Lower what is more than ``OUTLIER`` deviations above the median of an image to that. (N, H, W) -> (N, H, W)

    Deviations are measured by the median distance from the median, which outliers do not move.
    """
    cells = values.flatten(1)
    median = _median(cells)
    limit = median + OUTLIER * DEVIATION * _median((cells - median).abs())
    return torch.minimum(cells, limit).view_as(values)


def _median(values: Tensor) -> Tensor:
    """Return the median, the lower one of two. (N, P) -> (N, 1)"""
    middle = torch.full((1,), (values.shape[1] - 1) // 2, device=values.device)  # a slice would be no ONNX of any size
    return values.sort(1).values.index_select(1, middle)


def limit_lengths(phi: Tensor) -> Tensor:
    """Shorten the tokens of a signed map that are outliers by their length, and keep their directions.

    Vision transformers store things in a few tokens of plain background, which get many times as long as others
    (Darcet et al., Vision transformers need registers): one of them would be all of a mean. (N, C, H, W), the same
    """
    lengths: Tensor = phi.detach().norm(dim=1)
    scale = limit_outliers(lengths) / lengths.clamp(min=torch.finfo(phi.dtype).tiny)
    return phi * scale[:, None]


def pool(
    phi: Tensor, mask: Tensor | None = None, *, gem: bool = False, total: bool = False, signed: bool = False
) -> Tensor:
    """Return the mask-weighted mean of φ over positions (Eq. 9 up to a constant). (N, C, H, W), (N, H, W) -> (N, C)

    A mask that is zero everywhere (a constant A) says nothing about *where*: all cells then count alike. With ``total``
    it is the weighted sum, not the mean: Eq. 9 as printed. GeM takes negative values for zero; of a ``signed`` map it
    counts each channel from its lowest value in the image.
    """
    lowest = phi.amin((2, 3), keepdim=True) if gem and signed else None
    if gem:
        phi = (phi if lowest is None else phi - lowest).clamp(min=LEAST).pow(GEM_POWER)
    if mask is None:
        pooled = phi.mean((2, 3))
    else:
        flat = mask.flatten(1)
        flat = torch.where(flat.sum(1, keepdim=True) > 0, flat, torch.ones_like(flat))  # (N, H*W)
        pooled = torch.einsum("nchw,nhw->nc", phi, flat.view_as(mask))
        pooled = pooled if total else pooled / flat.sum(1, keepdim=True)
    pooled = pooled.pow(1 / GEM_POWER) if gem else pooled
    return pooled if lowest is None else pooled + lowest[:, :, 0, 0]


def pool_two_maps(
    phi: Tensor,
    earlier: Tensor,
    mask: Tensor | None,
    weight: float,
    *,
    signed: bool = False,
    earlier_signed: bool = False,
) -> Tensor:
    """Return GeM of φ under a mask beside ``weight`` times that of an earlier map, each of length 1, as is the whole.

    The earlier map is pooled under the same mask, enlarged to its size.
    (N, C, H, W), (N, D, H', W'), (N, H, W) -> (N, C + D)
    """
    larger = None if mask is None else enlarge(mask, *earlier.shape[2:])
    last = normalize(pool(phi, mask, gem=True, signed=signed), dim=1)
    before = normalize(pool(earlier, larger, gem=True, signed=earlier_signed), dim=1)
    return torch.cat([last, weight * before], 1) / math.hypot(1, weight)


def enlarge(mask: Tensor, height: int, width: int) -> Tensor:
    """Return the mask for the cells of a larger map, interpolated bilinearly. (N, H, W) -> (N, height, width)"""
    return interpolate(mask[:, None], (height, width), mode="bilinear", align_corners=False)[:, 0]


def upcast(x: Tensor) -> Tensor:
    """Convert to at least float32: GradCAM is near 1e-4, where half precision has no digits left."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def average(phi: Tensor) -> Tensor:
    """Average φ over its cells, never in half precision. (N, C, H, W) -> (N, C)"""
    return phi.mean((2, 3), dtype=torch.promote_types(phi.dtype, torch.float32))


def bilinear(phi: Tensor, responses: Tensor) -> Tensor:
    """Return concat_k mean_ij a_k,ij φ_ij, without K copies of φ. (N, C, H, W), (N, K, H, W) -> (N, K*C)"""
    cells = phi.shape[2] * phi.shape[3]
    return torch.einsum("nkhw,nchw->nkc", responses, phi).flatten(1) / cells


class Pool(nn.Module):
    """Pools φ for the head while training: the average, or what a subclass makes of it."""

    uniform = True  # every cell counts alike: GradCAM then needs the gradient at the pooled vector only

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, phi: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, width)"""
        return average(phi)


def object_share(objects: Tensor, height: int, width: int) -> Tensor:
    """Return the share of each cell of φ's grid that the object covers. (N, R, R) -> (N, H, W)"""
    return adaptive_avg_pool2d(objects.float()[:, None], (height, width))[:, 0]


def narrow_mask(mask: Tensor | None, cover: Tensor) -> Tensor:
    """Return mask × cover; where that is zero everywhere, all of the part counts alike. (N, H, W) -> (N, H, W)"""
    if mask is None:
        return cover
    inside = mask * cover
    return torch.where(inside.sum((1, 2), keepdim=True) > 0, inside, cover)
