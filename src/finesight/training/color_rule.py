"""How strongly views may change the colors, decided from the images themselves and without labels.

A network that learns to overlook color loses on birds, whose plumage tells the species, and gains on cars, whose paint
tells nothing. The frozen network can say which it is: turn the hue of every image as far as MoCo v2's views do, and
count the nearest neighbors that stay. A mirror image is the measure to compare with, as it changes no image's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import DecodedCache
from finesight.data.color import adjust_hue
from finesight.data.views import ViewConfig
from finesight.evaluation.retrieval import neighbors
from finesight.features.encoder import Encoder
from finesight.features.preprocess import cached_pixels

IMAGES = 256  # are looked at, at most
NEIGHBORS = 5
SHARE = 0.85  # of the neighbors that a mirror leaves: strong changes must leave more (results/choosing/colors.json)
BATCH = 32
MILD: Mapping[str, float] = MappingProxyType({"views.saturation": 0.1, "views.hue": 0.02, "views.gray": 0.0})
STRONG: Mapping[str, float] = MappingProxyType(
    {f"views.{name}": getattr(ViewConfig(), name) for name in ("saturation", "hue", "gray")}  # MoCo v2's
)


@dataclass(frozen=True)
class ColorChoice:
    """The settings of the views' colors, with the shares of neighbors that stay."""

    settings: Mapping[str, float]
    hue: float  # when hues turn
    mirror: float  # when images are mirrored
    images: int

    @property
    def reason(self) -> str:
        """The choice in words."""
        kept = f"of {self.images} images' neighbors {self.hue:.0%} stay when hues turn, {self.mirror:.0%} when mirrored"
        says = "tells images apart: mild changes" if self.settings == MILD else "says little: strong changes"
        return f"color {says} ({kept})"

    def describe(self) -> dict[str, Any]:
        """Return the choice and what it was made by, for a result."""
        shares = {"hue": round(self.hue, 4), "mirror": round(self.mirror, 4)}
        return {"settings": dict(self.settings), "neighbors_kept": shares, "images": self.images}


def choose_colors(
    encoder: Encoder, cache: DecodedCache, images: NDArray[np.int64], resolution: int, seed: int = 0
) -> ColorChoice:
    """Return strong changes of color if turned hues disturb the neighbors of ``images`` hardly more than a mirror does.

    Else, and where too few images are there to see a difference, mild ones.

    Parameters
    ----------
    encoder
        The network before training, with the pooling it would be used with.
    images
        Indices into the cache; a random part of them is looked at.
    resolution
        Pixels of the views, as they are trained.
    """
    generator = np.random.default_rng([seed, 5])
    some = np.sort(generator.permutation(images)[:IMAGES])
    turns = torch.from_numpy(generator.choice((-1.0, 1.0), len(some)) * ViewConfig().hue).float()
    found: dict[str, NDArray[np.int64]] = {}
    for change in ("none", "hue", "mirror"):
        parts = []
        for start in range(0, len(some), BATCH):
            pixels = cached_pixels(cache, some[start : start + BATCH], resolution)
            if change == "hue":
                pixels = turn_hue(pixels, turns[start : start + BATCH])
            elif change == "mirror":
                pixels = np.ascontiguousarray(pixels[:, :, ::-1])
            encoded = encoder.encode(encoder.normalize(pixels), (encoder.config.pooling,))
            parts.append(encoded.features[encoder.config.pooling].numpy())
        found[change] = neighbors(np.concatenate(parts), np.arange(len(some)), NEIGHBORS)[0]
    hue, mirror = (shared_neighbors(found["none"], found[name]) for name in ("hue", "mirror"))
    return ColorChoice(STRONG if hue > SHARE * mirror and mirror < 1 else MILD, hue, mirror, len(some))


def turn_hue(pixels: NDArray[np.uint8], turns: Tensor) -> NDArray[np.uint8]:
    """Turn the hue of each image by its share of a full turn. (N, R, R, 3), (N,) -> (N, R, R, 3)"""
    turned = adjust_hue(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255, turns)
    changed: NDArray[np.uint8] = (turned * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return changed


def shared_neighbors(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the share of neighbors that two lists of each image have in common. (N, k), (N, k) -> from 0 to 1"""
    return float((one[:, :, None] == other[:, None, :]).any(2).mean()) if one.size else 1.0
