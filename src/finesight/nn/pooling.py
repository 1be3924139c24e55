"""φ (and a mask) to one feature: average, attention-weighted, GeM, or attention inside GeM."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from finesight.nn.pooling_config import PoolingName

GEM_POWER = 3.0
EPSILON = 1e-7  # the paper's 1e-7 of A'


def attention_mask(
    attention: Tensor,
    *,
    over: Literal["image", "batch"] = "image",
    divisor: Literal["shifted_max", "max"] = "shifted_max",
) -> Tensor:
    """A' = (A − min A) / (1e-7 + max A), Eq. 8; (N, H, W) -> (N, H, W).

    Dividing by the maximum of the *shifted* map keeps the mask in [0, 1] even where all of A is negative. A range over
    the batch makes a feature depend on its batch-mates; it is here because the released code does it.
    """
    dims = (1, 2) if over == "image" else (0, 1, 2)
    shifted = attention - attention.amin(dims, keepdim=True)
    largest = (shifted if divisor == "shifted_max" else attention).amax(dims, keepdim=True)
    return shifted / (EPSILON + largest)


def energy_map(phi: Tensor) -> Tensor:
    """Channel energy Σ_c φ, the label-free control every learnt mask must beat. (N, C, H, W) -> (N, H, W)"""
    return phi.sum(1)


def pool(phi: Tensor, mask: Tensor | None = None, *, gem: bool = False) -> Tensor:
    """Mask-weighted mean of φ over positions (Eq. 9 up to a constant). (N, C, H, W), (N, H, W) -> (N, C)

    A mask that is zero everywhere (a constant A) says nothing about *where*: the mean is plain then.
    """
    if gem:
        phi = phi.clamp(min=1e-6).pow(GEM_POWER)
    if mask is None:
        pooled = phi.mean((2, 3))
    else:
        flat = mask.flatten(1)
        flat = torch.where(flat.sum(1, keepdim=True) > 0, flat, torch.ones_like(flat))  # (N, H*W)
        pooled = torch.einsum("nchw,nhw->nc", phi, flat.view_as(mask)) / flat.sum(1, keepdim=True)
    return pooled.pow(1 / GEM_POWER) if gem else pooled


def uses_rationale(name: PoolingName) -> bool:
    return name.startswith("rationale")


def has_mask(name: PoolingName) -> bool:
    """Does the pooling weigh positions, or treat them all alike?"""
    return name not in ("average", "gem")


def pool_by_name(name: PoolingName, phi: Tensor, rationale_mask: Tensor | None = None) -> Tensor:
    """The named pooling; the ``rationale`` ones need the branch's mask."""
    kind, gem = name.removesuffix("-gem"), name.endswith("gem")
    if kind == "rationale":
        assert rationale_mask is not None
        return pool(phi, rationale_mask, gem=gem)
    return pool(phi, attention_mask(energy_map(phi)) if kind == "energy" else None, gem=gem)
