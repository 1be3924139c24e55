"""Compare two encoders on the same queries: which is better, how certain that is, and on which images they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import Difference, paired_bootstrap
from finesight.evaluation.evaluate import Evaluation, evaluate, evaluate_poolings
from finesight.evaluation.metrics import retrieval_metrics
from finesight.evaluation.retrieval import neighbors
from finesight.features.encoder import Encoder

SAME_AP = 1e-12  # below it a difference is rounding
LISTED = 20  # changes of AP in the summary
NAMED = 5  # images in an error message


class ScorePair(NamedTuple):
    """Two scores in percent, and b − a."""

    a: float
    b: float
    difference: Difference


@dataclass(frozen=True, eq=False)
class Comparison:
    """The scores of two encoders on the same queries. In a notebook it shows itself.

    Queries are numbered as in ``paths``; what each of them gave is in ``a.queries`` and ``b.queries``.
    """

    metrics: dict[str, ScorePair]  # by the key of a metric of retrieval
    split: str  # "official" or "given": the test images of that split; "all": the source has none
    images: NDArray[np.int64]  # (queries,) indices into either cache
    paths: tuple[str, ...]
    labels: tuple[str, ...]  # class of each query
    a: Evaluation
    b: Evaluation
    became_right: NDArray[np.int64]  # queries whose nearest image is of their class by b alone
    became_wrong: NDArray[np.int64]  # by a alone
    ap_changes: NDArray[np.int64]  # queries whose AP differs, largest change first
    dropped: tuple[str, ...]  # readable at the resolution of one encoder only, so left out for both
    resamples: int
    seed: int

    @property
    def changed(self) -> NDArray[np.int64]:
        """Return every query that changed: those right for one only in turns, then the others, largest change first."""
        rank = {int(query): place for place, query in enumerate(self.ap_changes)}
        right, wrong = (
            sorted(queries.tolist(), key=lambda query: rank.get(query, len(rank)))
            for queries in (self.became_right, self.became_wrong)
        )
        turns = [query for query in chain.from_iterable(zip_longest(right, wrong)) if query is not None]
        x, y = self.a.queries.per_query, self.b.queries.per_query
        rest = np.flatnonzero(np.any([abs(x[key] * 1.0 - y[key]) > SAME_AP for key in x], axis=0)).tolist()
        return np.array(list(dict.fromkeys([*turns, *self.ap_changes.tolist(), *rest])), dtype=np.int64)

    def _repr_html_(self) -> str:
        from finesight.evaluation.comparison_views import comparison_html

        return comparison_html(self)

    def summary(self) -> dict[str, Any]:
        """Return all numbers and the images that changed, ready for JSON."""
        x, y = self.a.queries.per_query, self.b.queries.per_query
        return {
            "a": _system(self.a),
            "b": _system(self.b),
            "split": self.split,
            "queries": len(self.paths),
            "resamples": self.resamples,
            "seed": self.seed,
            "metrics": {
                name: {"a": metric.a, "b": metric.b, "difference": vars(metric.difference)}
                for name, metric in self.metrics.items()
            },
            "became_right": [self.paths[i] for i in self.became_right],
            "became_wrong": [self.paths[i] for i in self.became_wrong],
            "ap_changed": len(self.ap_changes),
            "largest_ap_changes": [
                {"path": self.paths[i], "a": float(x["mAP"][i]), "b": float(y["mAP"][i])}
                for i in self.ap_changes[:LISTED]
            ],
            "skipped": [path for path, _ in self.a.cache.skipped],
            "dropped": list(self.dropped),
        }


def compare(
    a: Encoder,
    b: Encoder,
    data: str | Path | ImageSource,
    *,
    resamples: int = 10_000,
    seed: int = 0,
    limit_classes: int | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    pooling_a: str | None = None,
    pooling_b: str | None = None,
) -> Comparison:
    """Score both on the test images of ``data`` (all images, where it has no split) and compare query by query.

    The same encoder under two poolings takes one pass over the images.

    Raises
    ------
    FineSightError
        If an encoder cannot have the pooling, ``data`` has no labels, or the images change meanwhile.
    """
    names = pooling_a or a.config.pooling, pooling_b or b.config.pooling
    for encoder, name in zip((a, b), names, strict=True):
        encoder.with_pooling(name)  # raises at once if it cannot
    options: dict[str, Any] = {"cache_dir": cache_dir, "workers": workers, "progress": progress}
    source, split, dropped = _common_images(data, limit_classes, (a, b), options)
    if a is b:
        both = evaluate_poolings(a, source, tuple(dict.fromkeys(names)), linear=False, **options)
        first, second = (both[name] for name in names)
    else:
        first, second = (
            evaluate(encoder, source, pooling=name, linear=False, **options)
            for encoder, name in zip((a, b), names, strict=True)
        )
    _check_same_images(first, second)
    own, labeled = first.cache.source, _labeled(first)
    assert own.labels is not None
    _, number, count = np.unique(own.labels[labeled], return_inverse=True, return_counts=True)
    images = labeled[count[number] > 1]  # the queries of ``retrieval``
    x, y = first.queries.per_query, second.queries.per_query
    change = np.abs(y["mAP"] - x["mAP"])
    order = np.argsort(-change, kind="stable")
    return Comparison(
        metrics={
            metric.key: ScorePair(
                first.queries.score(metric.key),
                second.queries.score(metric.key),
                paired_bootstrap(x[metric.key], y[metric.key], scale=metric.scale, resamples=resamples, seed=seed),
            )
            for metric in retrieval_metrics()
        },
        split=split or first.scores["setting"]["split"],
        images=images,
        paths=tuple(own.paths[images].tolist()),
        labels=tuple(own.classes[label] for label in own.labels[images]),
        a=first,
        b=second,
        became_right=np.flatnonzero(~x["rank1"] & y["rank1"]),
        became_wrong=np.flatnonzero(x["rank1"] & ~y["rank1"]),
        ap_changes=order[change[order] > SAME_AP],
        dropped=dropped,
        resamples=resamples,
        seed=seed,
    )


def nearest(evaluation: Evaluation, images: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nearest image of each of ``images``; both are indices into the cache."""
    gallery = _labeled(evaluation)
    kept = np.searchsorted(evaluation.test, gallery)  # test is ascending
    features = evaluation.extracted.features[evaluation.pooling][kept]
    found, _ = neighbors(features, np.searchsorted(gallery, images), 1)
    return gallery[found[:, 0]]


def _system(evaluation: Evaluation) -> dict[str, Any]:
    return {name: evaluation.scores["setting"][name] for name in ("method", "pooling", "resolution")}


def _common_images(
    data: str | Path | ImageSource, limit_classes: int | None, encoders: Sequence[Encoder], options: dict[str, Any]
) -> tuple[ImageSource, str, tuple[str, ...]]:
    """Return the images to search, "all" if the source has no split, and what only one encoder can read.

    Without a split all images are made "test": ``evaluate`` searches them all then too, but keeps features of a part.
    """
    source = data if isinstance(data, ImageSource) else open_source(data)
    if source.labels is None:
        return source, "", ()  # ``evaluate`` raises
    if limit_classes is not None:
        source = source.first_classes(limit_classes)
    split = ""
    if source.splits is None:
        split, source = "all", replace(source, splits=np.full(len(source), "test"))
    elif np.any(source.splits == "test"):  # else ``evaluate`` raises
        source = source.split("test")  # train images need not even be decoded
    scales = {encoder.config.framing.scale for encoder in encoders}
    if len(scales) == 1:
        return source, split, ()
    first, second = (set(open_cache(source, scale, **options).source.paths.tolist()) for scale in scales)
    one_only = first ^ second
    kept = np.array([path not in one_only for path in source.paths.tolist()], dtype=bool)
    return source.select(kept) if one_only else source, split, tuple(sorted(one_only))


def _check_same_images(a: Evaluation, b: Evaluation) -> None:
    """Raise if a file came or went between the two passes."""
    paths = [evaluation.cache.source.paths[evaluation.test].tolist() for evaluation in (a, b)]
    if paths[0] != paths[1]:
        differ = sorted(set(paths[0]) ^ set(paths[1]))
        more = f" and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
        raise FineSightError(
            f"A paired comparison needs the same images for both, but {', '.join(differ[:NAMED])}{more} could be read "
            "for one of them only. Leave the data alone while they are compared, and run the command again."
        )


def _labeled(evaluation: Evaluation) -> NDArray[np.int64]:
    labels = evaluation.cache.source.labels
    assert labels is not None
    return evaluation.test[labels[evaluation.test] >= 0]
