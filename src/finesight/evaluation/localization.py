"""Does the attention lie on the object? Measured where a data set has object masks or boxes."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError
from finesight.evaluation.metrics import LocalizationMetric, metrics_of
from finesight.features.extract import Extracted, has_objects, object_masks
from finesight.nn.poolings import find_pooling


def localization(attentions: Iterable[ArrayLike], masks: Iterable[ArrayLike | None]) -> dict[str, float | int]:
    """Score the attention of many images by every metric of localization, in percent.

    ``object_area`` stands beside them: what attention that is the same everywhere would score. Images without a mask,
    or whose mask is empty, are left out.

    Raises
    ------
    FineSightError
        If no image has a mask.
    """
    metrics = metrics_of(LocalizationMetric)  # type: ignore[type-abstract]
    values: dict[str, list[float]] = {metric.key: [] for metric in metrics}
    area: list[float] = []
    for attention, mask in zip(attentions, masks, strict=True):
        if mask is None or not np.any(mask):
            continue
        for metric in metrics:
            values[metric.key].append(metric.value(attention, mask))
        area.append(float(np.mean(np.asarray(mask, dtype=bool))))
    if not area:
        raise FineSightError(
            "Localization needs object masks or boxes and no image has one. Evaluate without localization, "
            "or give a data set that has them (CUB-200-2011, the drawn look-alikes)."
        )
    scores: dict[str, float | int] = {metric.key: metric.score(values[metric.key]) for metric in metrics}
    return scores | {"object_area": 100.0 * float(np.mean(area)), "images": len(area)}


def localize_poolings(
    extracted: Extracted, cache: DecodedCache, test: NDArray[np.int64], resolution: int, poolings: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Score the attention of each pooling against the objects.

    Left out are those that are given the object, and the class token, which has no mask of its own.
    """
    if not has_objects(cache.source):
        return {}
    judged = {
        name: pooling
        for name in poolings
        if not (pooling := find_pooling(name)).needs_objects and not (pooling.needs_class_token and not pooling.mask)
    }
    by_mask = {
        kind: localization(extracted.masks[kind], object_masks(cache, test, resolution))
        for kind in {pooling.shown_mask for pooling in judged.values()}
    }
    result: dict[str, dict[str, Any]] = {}
    for name, pooling in judged.items():
        scores = by_mask[pooling.shown_mask]
        result[name] = scores | {"map": "attention"}
        if pooling.mask is None:  # a plain average attends to all places alike and scores the object's area
            result[name] = dict.fromkeys(scores, scores["object_area"]) | {"images": scores["images"], "map": "uniform"}
    return result
