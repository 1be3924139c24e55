"""The map of the stage before the last one, which has finer detail than φ: a ResNet's layer3 beside its layer4.

timm's ``forward_intermediates`` gives it in the same pass. Networks with one size of map throughout, as plain vision
transformers are, have no such stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from finesight.errors import FineSightError
from finesight.nn.feature_map import PLAIN_STRIDE, find_map
from finesight.nn.signs import SignTracker

_SIDE = 128  # pixels of the image that is tried


@dataclass(frozen=True)
class EarlierMap:
    """Which of the maps that timm's ``forward_intermediates`` gives is the earlier one."""

    index: int
    channels: int
    signed: bool  # it has negative values that count


@cache
def find_earlier(name: str, output_stride: int = PLAIN_STRIDE) -> EarlierMap:
    """Return where a timm model has the last map that is larger than φ.

    At output stride 8 or 16, where later stages keep their size, it is the map of the same stage.

    Raises
    ------
    FineSightError
        If there is none, with the reason.
    """
    found, plain = find_map(name, output_stride), find_map(name)
    if plain.map.layout == "tokens":
        raise FineSightError(
            f"'{name}' has no map of an earlier stage: all its blocks have tokens of the same patches. "
            "Take another pooling, or a network with stages (resnet50, convnext_tiny, swin_tiny_patch4_window7_224, …)."
        )
    try:
        _, shapes, _ = _try(plain.ghost(), plain.map.sides.at_least(_SIDE))
        phi, maps, signed = _try(ghost := found.ghost(), side := found.map.sides.at_least(_SIDE))
        own = ghost.forward_features(_images(side))
    except Exception as error:  # models without the method, or with one that does not fit them, fail in their own ways
        raise FineSightError(
            f"timm gives no map of an earlier stage of '{name}' ({type(error).__name__}). Take another pooling."
        ) from error
    larger = [index for index, shape in enumerate(shapes) if shape[2] > shapes[-1][2]]
    if not larger or phi != tuple(own.shape) or len(maps) != len(shapes):
        raise FineSightError(f"'{name}' has no map of an earlier stage that is larger than φ. Take another pooling.")
    return EarlierMap(larger[-1], maps[larger[-1]][1], signed[larger[-1]])


def two_maps(model: Any, images: Tensor, earlier: EarlierMap) -> tuple[Tensor, Tensor]:
    """Return what ``forward_features`` gives, and the earlier map (N, C, H, W) of the same pass."""
    given, (before,) = model.forward_intermediates(images, indices=[earlier.index], output_fmt="NCHW")
    return given, before


def _try(ghost: Any, side: int) -> tuple[tuple[int, ...], list[tuple[int, ...]], list[bool]]:
    """Return the shape of what the model gives, and of each of its maps the shape and whether it is signed."""
    tracker = SignTracker()
    with torch.no_grad(), tracker:
        given, maps = ghost.forward_intermediates(_images(side), output_fmt="NCHW")
    return tuple(given.shape), [tuple(one.shape) for one in maps], [tracker.is_signed(one) for one in maps]


def _images(side: int) -> Tensor:
    return torch.empty(1, 3, side, side, device="meta")
