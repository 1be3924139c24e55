"""Does the attention lie on the object?"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.functional import interpolate

from finesight.evaluation.metrics import LocalizationMetric, metric

ROUNDING = 1e-9  # pixels of a plateau differ by the rounding of their weights


@metric
class Inside(LocalizationMetric):
    """The share of the attention that falls on the object.

    Map and mask must show the same part of the image. The map is brought to the mask's size, not the other way round:
    a bill or a crown would vanish from the mask at 7 x 7. A map that is zero everywhere has nothing on the object.
    """

    key, title = "inside", "attention"
    words = "the share of the attention on the object"

    def value(self, attention: ArrayLike, mask: ArrayLike) -> float:
        inside = np.asarray(mask, dtype=bool)
        heat = upsample(attention, inside.shape)
        total = float(heat.sum())
        return float(heat[inside].sum()) / total if total > 0 else 0.0


@metric
class Pointing(LocalizationMetric):
    """Whether the maximum of the map lies on the object (the pointing game, without tolerance).

    A constant map has no maximum and points nowhere. Upsampling makes plateaus (at borders, between two equal pixels):
    more than half of the plateau must lie on the object, so that no corner of it is preferred.
    """

    key, title, binary = "pointing", "pointing", True
    words = "the maximum of the attention lies on the object"

    def value(self, attention: ArrayLike, mask: ArrayLike) -> float:
        values = np.asarray(attention)
        if values.min() == values.max():
            return False
        inside = np.asarray(mask, dtype=bool)
        heat = upsample(values, inside.shape)
        top = heat >= heat.max() * (1 - ROUNDING)
        return bool(inside[top].mean() > 0.5)


def upsample(attention: ArrayLike, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Resize a map (H, W) -> (h, w), bilinear, pixel centers aligned as in an image resize.

    Raises
    ------
    ValueError
        If the map is not two-dimensional, not finite or negative anywhere.
    """
    heat = np.ascontiguousarray(attention, dtype=np.float64)
    if heat.ndim != 2 or len(size) != 2:
        raise ValueError(f"attention and mask must be (H, W), not {heat.shape} and {size}")
    if not np.isfinite(heat).all() or heat.min() < 0:
        raise ValueError("attention must be finite and not negative")
    resized = interpolate(torch.from_numpy(heat)[None, None], size=size, mode="bilinear", align_corners=False)
    result: NDArray[np.float64] = resized[0, 0].numpy()
    return result
