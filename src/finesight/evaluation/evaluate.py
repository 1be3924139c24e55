"""Retrieval, linear probe and localisation of one encoder on one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.console import console
from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.encoder import Encoder
from finesight.errors import FineSightError
from finesight.evaluation.features import Extracted, extract, object_masks
from finesight.evaluation.linear import linear_probe
from finesight.evaluation.localization import localization
from finesight.evaluation.retrieval import retrieval
from finesight.nn.pooling import has_mask
from finesight.nn.pooling_config import PoolingName

SPLIT_SEED = 0
TRAIN_SHARE = 0.7  # of each class, where a labelled source has no split of its own


@dataclass(frozen=True)
class Evaluation:
    """The scores, and what the report needs for its pictures."""

    scores: dict[str, Any]
    cache: DecodedCache
    test: NDArray[np.int64]  # indices into the cache
    extracted: Extracted  # of the test images
    pooling: PoolingName


def evaluate(
    encoder: Encoder,
    data: str | Path | ImageSource,
    *,
    pooling: PoolingName | None = None,
    linear: bool = True,
    fractions: Sequence[int] = (100, 50, 20),
    normalise: bool | None = None,
    limit_classes: int | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Score ``encoder`` on ``data``: retrieval within test, a probe from train to test, attention on the object."""
    source = data if isinstance(data, ImageSource) else open_source(data)
    if source.labels is None or not (source.labels >= 0).any():
        raise FineSightError(
            f"{source.root} has no labels, and scores need them: put the images of each class into a folder of its "
            "own, or give a CSV list with the columns path,label. (Features without labels: finesight embed.)"
        )
    if limit_classes is not None:
        source = source.select(source.labels < limit_classes)
    cache = open_cache(
        source, cache_side(encoder.config.resolution), cache_dir=cache_dir, workers=workers, progress=progress
    )
    train, test, split = split_indices(cache.source)
    if linear and not len(train):
        raise FineSightError(
            f"{source.root} has no train images to fit the linear probe on: leave it out (--no-linear)."
        )
    labels = cache.source.labels
    assert labels is not None
    unit = normalise if normalise is not None else _probe_unit(encoder)
    name = pooling or encoder.config.pooling
    encoder = encoder.pooled(name)
    extracted = extract(encoder, cache, test, (name,), progress=progress)
    features, gallery = extracted.features[name], test
    if len(train) and (linear or split == "random"):
        train_features = extract(encoder, cache, train, (name,), progress=progress).features[name]
    if len(train) and split == "random":  # every image is a test image of the search, which learns nothing from train
        features, gallery = np.concatenate([features, train_features]), np.concatenate([test, train])
    scores: dict[str, Any] = {"retrieval": retrieval(features, labels[gallery]).summary()}
    if linear:
        scores["linear"] = linear_probe(
            train_features,
            labels[train],
            extracted.features[name],
            labels[test],
            fractions=fractions,
            normalise=unit,
            progress=(lambda text: console.print(text, style="dim")) if progress else None,
        )
    if cache.source.masks is not None or cache.source.boxes is not None:
        masks = object_masks(cache, test, encoder.config.resolution)
        scores["localization"] = localization(extracted.attention, masks) | {"map": "attention"}
        if not has_mask(name):  # a plain average looks everywhere alike: as good as a blind guess
            blind = scores["localization"]["object_area"]
            scores["localization"] |= {"inside": blind, "pointing": blind, "map": "uniform"}
    scores["setting"] = {
        "pooling": name,
        "method": encoder.config.method,
        "resolution": encoder.config.resolution,
        "split": split,
        "train_images": len(train),
        "test_images": len(test),
        "skipped": len(cache.skipped),
    }
    return Evaluation(scores, cache, test, extracted, name)


def _probe_unit(encoder: Encoder) -> bool:
    return encoder.config.rationale is None or encoder.config.rationale.probe_input == "unit"


def split_indices(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """(train, test, kind of split). A labelled source without splits gets a fixed one, 70/30 within each class."""
    assert source.labels is not None
    if source.splits is not None:
        train, test = (np.flatnonzero(source.splits == name) for name in ("train", "test"))
        if not len(test):
            raise FineSightError(f"{source.root} has no readable test image to score on.")
        return train, test, "official" if source.kind == "cub" else "given"
    rng = np.random.default_rng(SPLIT_SEED)
    chosen = np.zeros(len(source), dtype=bool)
    for label in np.unique(source.labels[source.labels >= 0]):
        members = rng.permutation(np.flatnonzero(source.labels == label))
        chosen[members[: min(len(members) - 1, round(TRAIN_SHARE * len(members)))]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen), "random"
