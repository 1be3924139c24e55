"""Score one encoder on one source by a protocol: retrieval, linear probe, kNN and localization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.layouts.layout import official_counts
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.fractions import Parts, draw_parts, read_parts, write_parts
from finesight.evaluation.linear import ProbeResult
from finesight.evaluation.localization import localize_poolings
from finesight.evaluation.per_class import Row
from finesight.evaluation.protocols import ProbeTask, Protocol, provenance, setting_words
from finesight.evaluation.protocols.finesight import FineSightProtocol
from finesight.evaluation.retrieval import RetrievalScores
from finesight.evaluation.score_table import score_table
from finesight.evaluation.scoring import score_features
from finesight.features.encoder import Encoder
from finesight.features.extract import Extracted, extract, extract_together
from finesight.features.wide import Features
from finesight.nn.distributed import world
from finesight.nn.poolings import find_pooling
from finesight.plots.html import Section, html_fragment

SPLIT_SEED = 0
TRAIN_SHARE = 0.7  # of each class, where a labeled source has no split of its own


@dataclass(frozen=True)
class Evaluation:
    """The scores, and what the report needs for its pictures. In a notebook it shows a table of the scores."""

    scores: dict[str, Any]
    cache: DecodedCache
    test: NDArray[np.int64]  # indices into the cache
    extracted: Extracted  # of the test images
    pooling: str
    queries: RetrievalScores  # what each query gave, for comparing two encoders query by query
    classes: list[Row] = field(default_factory=list)  # scores by class, the worst first

    def _repr_html_(self) -> str:
        setting = self.scores["setting"]
        name = f"{setting['method']}, {self.pooling} pooling"
        section = Section("Scores", setting_words(self.scores), score_table({name: self.scores}, intervals=True))
        return html_fragment("Evaluation", [section])


def evaluate(
    encoder: Encoder, data: str | Path | ImageSource, *, pooling: str | None = None, **options: Any
) -> Evaluation:
    """Score ``encoder`` on ``data`` under one pooling; ``options`` are those of ``evaluate_poolings``."""
    name = pooling or encoder.config.pooling
    return evaluate_poolings(encoder, data, (name,), **options)[name]


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
    on_result: Callable[[Evaluation], None] | None = None,
    together: bool = False,
) -> dict[str, Evaluation]:
    """Score ``encoder`` under each of ``poolings``, with one pass over the images for all of them.

    Retrieval is within test, the linear probe goes from train to test, and the attention is compared with the object.
    Scores are those of one pooling alone, but for a rationale whose masks range over the batch: it takes all others
    through the network in batches, and features that come from batches differ in their last bits.

    Parameters
    ----------
    linear, probed
        Whether to fit linear probes, and to which of the poolings (None: all). They are slow and therefore come last.
    fractions
        Percentages of the train labels for the probe.
    normalize
        Whether the probe gets features of length 1; by default as the encoder's variant of the rationale says.
    protocol
        How to score; by default ``FineSightProtocol()``.
    on_result
        Called with each evaluation as soon as it is known.
    together
        Whether all processes of a launcher call this function. Each embeds its share of the images; the first one
        scores, and the others return nothing.

    Raises
    ------
    FineSightError
        If ``data`` has no labels, no readable test image, or no train image for a probe that is asked for.
    """
    protocol = protocol or FineSightProtocol()
    probing = () if not linear else tuple(poolings if probed is None else probed)
    if not set(probing) <= set(poolings):
        raise ValueError(f"cannot probe {probing}: only {tuple(poolings)} are evaluated")
    source = data if isinstance(data, ImageSource) else open_source(data)
    if source.labels is None or not (source.labels >= 0).any():
        raise FineSightError(
            f"{source.root} has no labels, and scores need them: put the images of each class into a folder of its "
            "own, or give a CSV list with the columns path,label. (Features without labels: finesight embed.)"
        )
    if limit_classes is not None:
        source = source.first_classes(limit_classes)
    cache = open_cache(source, encoder.config.framing.scale, cache_dir=cache_dir, workers=workers, progress=progress)
    train, test, split = split_indices(cache.source)
    if probing and not len(train):
        raise FineSightError(
            f"{source.root} has no train images to fit the linear probe on: leave it out (--no-linear)."
        )
    unit = normalize if normalize is not None else probes_unit_features(encoder)
    if not any(find_pooling(name).needs_branch for name in poolings):
        encoder = encoder.with_pooling("average")  # without its branch, which no pooling uses
    parts: Parts = {}
    if probing or protocol.save_labels:
        parts = label_parts(protocol, cache.source, train, fractions, limit_classes)
    if protocol.by_class:
        assert cache.source.labels is not None
        test = test[cache.source.labels[test] >= 0]
        test = test[np.argsort(cache.source.labels[test], kind="stable")]
    setup = _Setup(encoder, cache, train, test, split, protocol, parts, unit, progress)
    embed = extract_together if together else extract
    extracted = embed(encoder, cache, test, poolings, progress=progress)
    needed = tuple(poolings) if setup.search_all else probing if protocol.needs_train_features else ()
    train_features = embed(encoder, cache, train, needed, progress=progress).features if needed else {}
    if together and world()[0] > 0:
        return {}
    located = localize_poolings(extracted, cache, test, encoder.config.resolution, poolings)
    result: dict[str, Evaluation] = {}
    for name in sorted(poolings, key=lambda name: name in probing):
        result[name] = _score_pooling(
            setup, name, extracted, train_features.get(name), located.get(name), probe=name in probing
        )
        if on_result is not None:
            on_result(result[name])
    return result


@dataclass(frozen=True, eq=False)
class _Setup:
    """What the scores under every pooling share."""

    encoder: Encoder
    cache: DecodedCache
    train: NDArray[np.int64]  # indices into the cache
    test: NDArray[np.int64]
    split: str
    protocol: Protocol
    parts: Parts  # indices into ``train``
    unit: bool
    progress: bool

    @property
    def search_all(self) -> bool:
        """Whether all images are searched: retrieval learns nothing from train where the source has no split."""
        return self.split == "random" and len(self.train) > 0


def _score_pooling(
    setup: _Setup,
    name: str,
    extracted: Extracted,
    train_features: Features | None,
    located: dict[str, Any] | None,
    *,
    probe: bool,
) -> Evaluation:
    """Return all scores under one pooling."""
    features, source, protocol = extracted.features[name], setup.cache.source, setup.protocol
    probes: dict[str, ProbeResult] = {}
    if probe:
        data = setup.encoder, setup.cache, name, setup.train, setup.test, features, setup.parts, train_features
        probes = protocol.probe(ProbeTask(*data, unit=setup.unit, progress=setup.progress))
    images = setup.train, setup.test
    fitted = probes if probe else None
    found = score_features(
        source, *images, features, train_features, protocol, fitted, located=located, search_all=setup.search_all
    )
    scores = found.scores
    scores["setting"] = {
        "pooling": name,
        "method": setup.encoder.config.method,
        "resolution": setup.encoder.config.resolution,
        "split": setup.split,
        "train_images": len(setup.train),
        "test_images": len(setup.test),
        "skipped": len(setup.cache.skipped),
        **provenance(protocol, source, probes),
    }
    only = extracted.only(name)
    return Evaluation(scores, setup.cache, setup.test, only, name, found.queries, found.classes)


def label_parts(
    protocol: Protocol,
    source: ImageSource,
    train: NDArray[np.int64],
    fractions: Sequence[int],
    limit_classes: int | None,
) -> Parts:
    """Return the train images of each label fraction, as indices into ``train``; write them if asked."""
    assert source.labels is not None
    seed: int | None = protocol.seed
    if protocol.labels is None:
        parts = draw_parts(source.labels[train], fractions, protocol.seed)
    else:
        parts, seed = read_parts(protocol.labels, source, train, fractions, limit_classes)
    if protocol.save_labels is not None:
        write_parts(protocol.save_labels, source, train, parts, seed)
    return parts


def probes_unit_features(encoder: Encoder) -> bool:
    """Return whether the encoder's variant of the rationale gives the linear probe features of length 1."""
    return encoder.config.rationale is None or encoder.config.rationale.probe_input == "unit"


def split_indices(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Return train, test and the kind of split; a labeled source without splits gets a fixed one, 70/30 of each class.

    Raises
    ------
    FineSightError
        If the source has splits but no test image.
    """
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
