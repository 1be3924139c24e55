"""Retrieval, linear probe and localisation of one encoder on one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.console import console
from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.official import OFFICIAL
from finesight.data.sources import ImageSource, open_source
from finesight.encoder import Encoder
from finesight.errors import FineSightError
from finesight.evaluation.features import Extracted, extract, has_objects, object_masks, shown_mask
from finesight.evaluation.linear import linear_probe
from finesight.evaluation.localization import localization
from finesight.evaluation.retrieval import RetrievalScores, retrieval
from finesight.evaluation.wide import joined
from finesight.nn.pooling import mask_kind, uses_rationale
from finesight.nn.pooling_config import ORACLES, AnyPooling

SPLIT_SEED = 0
TRAIN_SHARE = 0.7  # of each class, where a labelled source has no split of its own


@dataclass(frozen=True)
class Evaluation:
    """The scores, and what the report needs for its pictures."""

    scores: dict[str, Any]
    cache: DecodedCache
    test: NDArray[np.int64]  # indices into the cache
    extracted: Extracted  # of the test images
    pooling: AnyPooling
    queries: RetrievalScores  # what each query found, for comparing two encoders query by query


def evaluate(
    encoder: Encoder,
    data: str | Path | ImageSource,
    *,
    pooling: AnyPooling | None = None,
    linear: bool = True,
    fractions: Sequence[int] = (100, 50, 20),
    normalise: bool | None = None,
    limit_classes: int | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Score ``encoder`` on ``data``: retrieval within test, a probe from train to test, attention on the object."""
    name = pooling or encoder.config.pooling
    return evaluate_poolings(
        encoder,
        data,
        (name,),
        linear=linear,
        fractions=fractions,
        normalise=normalise,
        limit_classes=limit_classes,
        cache_dir=cache_dir,
        workers=workers,
        progress=progress,
    )[name]


def evaluate_poolings(
    encoder: Encoder,
    data: str | Path | ImageSource,
    poolings: Sequence[AnyPooling],
    *,
    linear: bool = True,
    probed: Sequence[AnyPooling] | None = None,
    fractions: Sequence[int] = (100, 50, 20),
    normalise: bool | None = None,
    limit_classes: int | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    found: Callable[[Evaluation], None] | None = None,
) -> dict[AnyPooling, Evaluation]:
    """``evaluate`` under each of ``poolings``, with one pass over the images for all of them.

    ``probed`` says which of them get a linear probe, the slow part and therefore the last; None is all. ``found`` is
    told of each as soon as it is known. Scores are those of one pooling
    alone, but for a rationale whose masks range over the batch: it takes all others through the network in batches,
    and features that come from batches differ in their last bits.
    """
    probing = () if not linear else tuple(poolings if probed is None else probed)
    if not set(probing) <= set(poolings):
        raise ValueError(f"cannot probe {probing}: only {tuple(poolings)} are evaluated")
    source = _labelled_source(data, limit_classes)
    cache = open_cache(
        source, cache_side(encoder.config.resolution), cache_dir=cache_dir, workers=workers, progress=progress
    )
    train, test, split = split_indices(cache.source)
    if probing and not len(train):
        raise FineSightError(
            f"{source.root} has no train images to fit the linear probe on: leave it out (--no-linear)."
        )
    labels = cache.source.labels
    assert labels is not None
    unit = normalise if normalise is not None else _probe_unit(encoder)
    if not any(uses_rationale(name) for name in poolings):
        encoder = encoder.pooled("average")  # without its branch, which has no say here
    whole = split == "random" and len(train) > 0  # search all images then: it learns nothing from train
    gallery = np.concatenate([test, train]) if whole else test
    extracted = extract(encoder, cache, test, poolings, progress=progress)
    needed = tuple(poolings) if whole else probing
    known = extract(encoder, cache, train, needed, progress=progress).features if needed else {}
    located = _located(extracted, cache, test, encoder.config.resolution, poolings)
    setting = {
        "method": encoder.config.method,
        "resolution": encoder.config.resolution,
        "split": split,
        "train_images": len(train),
        "test_images": len(test),
        "skipped": len(cache.skipped),
    }
    result: dict[AnyPooling, Evaluation] = {}
    for name in sorted(poolings, key=lambda name: name in probing):
        features = extracted.features[name]
        queries = retrieval(joined(features, known[name]) if whole else features, labels[gallery])
        scores: dict[str, Any] = {"retrieval": queries.summary()}
        if name in probing:
            scores["linear"] = linear_probe(
                known[name],
                labels[train],
                features,
                labels[test],
                fractions=fractions,
                normalise=unit,
                progress=partial(_say, name) if progress else None,
            )
        if name in located:
            scores["localization"] = located[name]
        scores["setting"] = {"pooling": name} | setting
        result[name] = Evaluation(scores, cache, test, extracted.only(name), name, queries)
        if found is not None:
            found(result[name])
    return result


def _say(name: AnyPooling, text: str) -> None:
    console.print(f"{name}: {text}", style="dim")


def _labelled_source(data: str | Path | ImageSource, limit_classes: int | None) -> ImageSource:
    source = data if isinstance(data, ImageSource) else open_source(data)
    if source.labels is None or not (source.labels >= 0).any():
        raise FineSightError(
            f"{source.root} has no labels, and scores need them: put the images of each class into a folder of its "
            "own, or give a CSV list with the columns path,label. (Features without labels: finesight embed.)"
        )
    return source if limit_classes is None else source.first_classes(limit_classes)


def _located(
    extracted: Extracted,
    cache: DecodedCache,
    test: NDArray[np.int64],
    resolution: int,
    poolings: Sequence[AnyPooling],
) -> dict[AnyPooling, dict[str, Any]]:
    """Does each pooling look at the object? Not asked of an oracle, which is told."""
    if not has_objects(cache.source):
        return {}
    asked = [name for name in poolings if name not in ORACLES]
    by_mask = {
        kind: localization(extracted.masks[kind], object_masks(cache, test, resolution))
        for kind in {shown_mask(name) for name in asked}
    }
    return {name: _seen_by(name, by_mask[shown_mask(name)]) for name in asked}


def _seen_by(name: AnyPooling, scores: dict[str, float | int]) -> dict[str, Any]:
    """A plain average looks everywhere alike: as good as a blind guess."""
    if mask_kind(name) is not None:
        return scores | {"map": "attention"}
    blind = scores["object_area"]
    return scores | {"inside": blind, "pointing": blind, "map": "uniform"}


def _probe_unit(encoder: Encoder) -> bool:
    return encoder.config.rationale is None or encoder.config.rationale.probe_input == "unit"


def split_indices(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """(train, test, kind of split). A labelled source without splits gets a fixed one, 70/30 within each class."""
    assert source.labels is not None
    if source.splits is not None:
        train, test = (np.flatnonzero(source.splits == name) for name in ("train", "test"))
        if not len(test):
            raise FineSightError(f"{source.root} has no readable test image to score on.")
        return train, test, "official" if source.kind in OFFICIAL else "given"
    rng = np.random.default_rng(SPLIT_SEED)
    chosen = np.zeros(len(source), dtype=bool)
    for label in np.unique(source.labels[source.labels >= 0]):
        members = rng.permutation(np.flatnonzero(source.labels == label))
        chosen[members[: min(len(members) - 1, round(TRAIN_SHARE * len(members)))]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen), "random"
