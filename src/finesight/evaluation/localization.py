"""Does the attention lie on the object? Measured where a data set has object masks or boxes."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.functional import interpolate

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError
from finesight.features.extract import Extracted, has_objects, object_masks
from finesight.nn.poolings import Pooling, find_pooling

ROUNDING = 1e-9  # pixels of a plateau differ by the rounding of their weights


def attention_in_object(attention: ArrayLike, mask: ArrayLike) -> float:
    """Share of the attention (H, W) that falls on the object (h, w); nan when the map is zero everywhere.

    Map and mask must show the same part of the image. The map is brought to the mask's size, not the other
    way round: a bill or a crown would vanish from the mask at 7 x 7.
    """
    inside = np.asarray(mask, dtype=bool)
    heat = _upsample(attention, inside.shape)
    total = float(heat.sum())
    return float(heat[inside].sum()) / total if total > 0 else float("nan")


def pointing_game(attention: ArrayLike, mask: ArrayLike) -> bool:
    """Whether the maximum of the map, upsampled to the mask's size, lies on the object (no tolerance).

    A constant map has no maximum and points nowhere. Upsampling makes plateaus (at borders, between two equal
    pixels): more than half of the plateau must lie on the object, so that no corner of it is preferred.
    """
    values = np.asarray(attention)
    if values.min() == values.max():
        return False
    inside = np.asarray(mask, dtype=bool)
    heat = _upsample(values, inside.shape)
    top = heat >= heat.max() * (1 - ROUNDING)
    return bool(inside[top].mean() > 0.5)


def localization(attentions: Iterable[ArrayLike], masks: Iterable[ArrayLike | None]) -> dict[str, float | int]:
    """Both measures over many images, in percent, beside the object's area: what blind attention would score.

    Images without a mask, or whose mask is empty, say nothing and are left out. A map that is zero everywhere
    puts nothing on the object and counts as 0.
    """
    inside, pointing, area = [], [], []
    for attention, mask in zip(attentions, masks, strict=True):
        if mask is None or not np.any(mask):
            continue
        inside.append(np.nan_to_num(attention_in_object(attention, mask)))
        pointing.append(pointing_game(attention, mask))
        area.append(np.mean(np.asarray(mask, dtype=bool)))
    if not inside:
        raise FineSightError(
            "Localization needs object masks or boxes and no image has one. Evaluate without localization, "
            "or give a data set that has them (CUB-200-2011, the drawn look-alikes)."
        )
    return {
        "inside": 100.0 * float(np.mean(inside)),
        "pointing": 100.0 * float(np.mean(pointing)),
        "object_area": 100.0 * float(np.mean(area)),
        "images": len(inside),
    }


def _upsample(attention: ArrayLike, size: tuple[int, ...]) -> NDArray[np.float64]:
    """(H, W) -> (h, w), bilinear, pixel centers aligned as in an image resize."""
    heat = np.ascontiguousarray(attention, dtype=np.float64)
    if heat.ndim != 2 or len(size) != 2:
        raise ValueError(f"attention and mask must be (H, W), not {heat.shape} and {size}")
    if not np.isfinite(heat).all() or heat.min() < 0:
        raise ValueError("attention must be finite and not negative")
    grown = interpolate(torch.from_numpy(heat)[None, None], size=size, mode="bilinear", align_corners=False)
    result: NDArray[np.float64] = grown[0, 0].numpy()
    return result


def located_by(
    extracted: Extracted,
    cache: DecodedCache,
    test: NDArray[np.int64],
    resolution: int,
    poolings: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Does each pooling look at the object? Not asked of an oracle, which is told."""
    if not has_objects(cache.source):
        return {}
    asked = {name: pooling for name in poolings if not (pooling := find_pooling(name)).needs_objects}
    by_mask = {
        kind: localization(extracted.masks[kind], object_masks(cache, test, resolution))
        for kind in {pooling.shown_mask for pooling in asked.values()}
    }
    return {name: _seen_by(pooling, by_mask[pooling.shown_mask]) for name, pooling in asked.items()}


def _seen_by(pooling: Pooling, scores: dict[str, float | int]) -> dict[str, Any]:
    """A plain average looks everywhere alike: as good as a blind guess."""
    if pooling.mask is not None:
        return scores | {"map": "attention"}
    blind = scores["object_area"]
    return scores | {"inside": blind, "pointing": blind, "map": "uniform"}
