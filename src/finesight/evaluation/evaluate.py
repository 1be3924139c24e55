"""Retrieval, linear probe, kNN and localization of one encoder on one source, by one of two protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.layouts.layout import official_counts
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import score_intervals
from finesight.evaluation.fractions import Parts, drawn_parts, read_parts, write_parts
from finesight.evaluation.knn import knn_places
from finesight.evaluation.linear import ProbeResult, linear_probe
from finesight.evaluation.localization import located_by
from finesight.evaluation.metrics import METRICS, Values, classifier_values
from finesight.evaluation.per_class import Row, class_rows, query_labels, super_rows
from finesight.evaluation.protocol import Protocol, provenance
from finesight.evaluation.retrieval import RetrievalScores, Ties, retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import Extracted, extract
from finesight.features.wide import Features, joined
from finesight.io.console import console
from finesight.nn.poolings import find_pooling
from finesight.paper.released import Task, released_probe

SPLIT_SEED = 0
TRAIN_SHARE = 0.7  # of each class, where a labeled source has no split of its own


@dataclass(frozen=True)
class Evaluation:
    """The scores, and what the report needs for its pictures."""

    scores: dict[str, Any]
    cache: DecodedCache
    test: NDArray[np.int64]  # indices into the cache
    extracted: Extracted  # of the test images
    pooling: str
    queries: RetrievalScores  # what each query found, for comparing two encoders query by query
    classes: list[Row] = field(default_factory=list)  # scores by class, the worst first


def evaluate(
    encoder: Encoder,
    data: str | Path | ImageSource,
    *,
    pooling: str | None = None,
    linear: bool = True,
    fractions: Sequence[int] = (100, 50, 20),
    normalize: bool | None = None,
    protocol: Protocol | None = None,
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
        normalize=normalize,
        protocol=protocol,
        limit_classes=limit_classes,
        cache_dir=cache_dir,
        workers=workers,
        progress=progress,
    )[name]


def evaluate_poolings(
    encoder: Encoder,
    data: str | Path | ImageSource,
    poolings: Sequence[str],
    *,
    linear: bool = True,
    probed: Sequence[str] | None = None,
    fractions: Sequence[int] = (100, 50, 20),
    normalize: bool | None = None,
    protocol: Protocol | None = None,
    limit_classes: int | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    found: Callable[[Evaluation], None] | None = None,
) -> dict[str, Evaluation]:
    """``evaluate`` under each of ``poolings``, with one pass over the images for all of them.

    ``probed`` says which of them get a linear probe, the slow part and therefore the last; None is all. ``found`` is
    told of each as soon as it is known. Scores are those of one pooling
    alone, but for a rationale whose masks range over the batch: it takes all others through the network in batches,
    and features that come from batches differ in their last bits.
    """
    rules = protocol or Protocol()
    probing = () if not linear else tuple(poolings if probed is None else probed)
    if not set(probing) <= set(poolings):
        raise ValueError(f"cannot probe {probing}: only {tuple(poolings)} are evaluated")
    source = _labeled_source(data, limit_classes)
    cache = open_cache(
        source, cache_side(encoder.config.resolution), cache_dir=cache_dir, workers=workers, progress=progress
    )
    train, test, split = split_indices(cache.source)
    if probing and not len(train):
        raise FineSightError(
            f"{source.root} has no train images to fit the linear probe on: leave it out (--no-linear)."
        )
    unit = normalize if normalize is not None else _probe_unit(encoder)
    if not any(find_pooling(name).needs_branch for name in poolings):
        encoder = encoder.with_pooling("average")  # without its branch, which has no say here
    parts = _parts(rules, cache.source, train, fractions, limit_classes) if probing or rules.save_labels else {}
    if rules.released:
        test = _by_class(test, cache.source)
    scene = _Scene(encoder, cache, train, test, split, rules, parts, unit, progress)
    extracted = extract(encoder, cache, test, poolings, progress=progress)
    needed = tuple(poolings) if scene.whole else probing if rules.knn or not rules.released else ()
    known = extract(encoder, cache, train, needed, progress=progress).features if needed else {}
    located = located_by(extracted, cache, test, encoder.config.resolution, poolings)
    result: dict[str, Evaluation] = {}
    for name in sorted(poolings, key=lambda name: name in probing):
        result[name] = _scored(scene, name, extracted, known.get(name), located.get(name), probe=name in probing)
        if found is not None:
            found(result[name])
    return result


@dataclass(frozen=True, eq=False)
class _Scene:
    """What the scores under every pooling share."""

    encoder: Encoder
    cache: DecodedCache
    train: NDArray[np.int64]  # indices into the cache
    test: NDArray[np.int64]
    split: str
    rules: Protocol
    parts: Parts  # places in ``train``
    unit: bool
    progress: bool

    def labels(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self.cache.source.labels is not None
        return self.cache.source.labels[images]

    @property
    def whole(self) -> bool:
        """Without a split of its own, search all images: retrieval learns nothing from train."""
        return self.split == "random" and len(self.train) > 0

    @property
    def gallery(self) -> NDArray[np.int64]:
        return np.concatenate([self.test, self.train]) if self.whole else self.test

    @property
    def ties(self) -> Ties:
        return "last" if self.rules.released else "first"

    def facts(self) -> dict[str, Any]:
        return {
            "method": self.encoder.config.method,
            "resolution": self.encoder.config.resolution,
            "split": self.split,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "skipped": len(self.cache.skipped),
        }


def _scored(
    scene: _Scene,
    name: str,
    extracted: Extracted,
    known: Features | None,
    located: dict[str, Any] | None,
    *,
    probe: bool,
) -> Evaluation:
    """All scores under one pooling; ``known`` are the features of train, where they were asked for."""
    features, source = extracted.features[name], scene.cache.source
    searched = joined(features, known) if scene.whole and known is not None else features
    labels, tested = scene.labels(scene.gallery), scene.labels(scene.test)
    queries = retrieval(searched, labels, ties=scene.ties)
    scores: dict[str, Any] = {"retrieval": queries.summary()}
    classifiers: dict[str, dict[str, Mapping[str, Values]]] = {}
    probes: dict[str, ProbeResult] = {}
    if probe:
        probes = _probe(scene, name, features, known)
        scores["linear"] = {percent: result.summary() for percent, result in probes.items()}
        classifiers["linear"] = {percent: result.per_image for percent, result in probes.items()}
    if known is not None and scene.rules.knn:
        places = knn_places(known, scene.labels(scene.train), features, tested, scene.rules.knn)
        classifiers["knn"] = {str(k): classifier_values("knn", place) for k, place in places.items()}
        scores["knn"] = {
            k: {key: METRICS[f"knn.{key}"].score(values) for key, values in per_image.items()}
            for k, per_image in classifiers["knn"].items()
        }
    if located is not None:
        scores["localization"] = located
    if (supers := super_rows(source, searched, labels, queries, scene.ties)) is not None:
        scores["super_categories"] = supers
    scores["ci"] = score_intervals(queries.per_query, query_labels(labels), classifiers)
    scores["setting"] = {"pooling": name} | scene.facts() | provenance(scene.rules, source, probes)
    classes = class_rows(source, labels, queries, tested, classifiers)
    return Evaluation(scores, scene.cache, scene.test, extracted.only(name), name, queries, classes)


def _probe(scene: _Scene, name: str, features: Features, known: Features | None) -> dict[str, ProbeResult]:
    """Return the results of the linear probe by percent of the labels."""
    rules = scene.rules
    if rules.released:
        task = Task(
            scene.encoder,
            scene.cache,
            name,
            scene.train,
            scene.test,
            features,
            scene.parts,
            epochs=rules.probe_epochs,
            seed=rules.seed,
        )
        return released_probe(task, state=rules.state, progress=scene.progress)
    assert known is not None
    return linear_probe(
        known,
        scene.labels(scene.train),
        features,
        scene.labels(scene.test),
        fractions=tuple(scene.parts),
        seed=rules.seed,
        normalize=scene.unit,
        progress=partial(_say, name) if scene.progress else None,
        parts=scene.parts,
    )


def _by_class(test: NDArray[np.int64], source: ImageSource) -> NDArray[np.int64]:
    """The labeled ones, class by class, as a folder of class folders lists them: batches are of look-alikes then."""
    assert source.labels is not None
    known = test[source.labels[test] >= 0]
    return known[np.argsort(source.labels[known], kind="stable")]


def _parts(
    rules: Protocol,
    source: ImageSource,
    train: NDArray[np.int64],
    fractions: Sequence[int],
    limit_classes: int | None,
) -> Parts:
    """The train images of each label fraction, as places in ``train``."""
    assert source.labels is not None
    seed: int | None = rules.seed
    if rules.labels is None:
        parts = drawn_parts(source.labels[train], fractions, rules.seed)
    else:
        parts, seed = read_parts(rules.labels, source, train, fractions, limit_classes)
    if rules.save_labels is not None:
        write_parts(rules.save_labels, source, train, parts, seed)
    return parts


def _say(name: str, text: str) -> None:
    console.print(f"{name}: {text}", style="dim")


def _labeled_source(data: str | Path | ImageSource, limit_classes: int | None) -> ImageSource:
    source = data if isinstance(data, ImageSource) else open_source(data)
    if source.labels is None or not (source.labels >= 0).any():
        raise FineSightError(
            f"{source.root} has no labels, and scores need them: put the images of each class into a folder of its "
            "own, or give a CSV list with the columns path,label. (Features without labels: finesight embed.)"
        )
    return source if limit_classes is None else source.first_classes(limit_classes)


def _probe_unit(encoder: Encoder) -> bool:
    return encoder.config.rationale is None or encoder.config.rationale.probe_input == "unit"


def split_indices(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """(train, test, kind of split). A labeled source without splits gets a fixed one, 70/30 within each class."""
    assert source.labels is not None
    if source.splits is not None:
        train, test = (np.flatnonzero(source.splits == name) for name in ("train", "test"))
        if not len(test):
            raise FineSightError(f"{source.root} has no readable test image to score on.")
        return train, test, "official" if official_counts(source.kind) else "given"
    rng = np.random.default_rng(SPLIT_SEED)
    chosen = np.zeros(len(source), dtype=bool)
    for label in np.unique(source.labels[source.labels >= 0]):
        members = rng.permutation(np.flatnonzero(source.labels == label))
        chosen[members[: min(len(members) - 1, round(TRAIN_SHARE * len(members)))]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen), "random"
