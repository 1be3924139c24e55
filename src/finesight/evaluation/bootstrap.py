"""Bootstrap intervals of one system's scores, and of the difference of two systems on the same queries.

Two systems that search the same images mostly fail on the same ones, so their difference is known far better than
either score. Resampling the *difference* of each query keeps that; two separate intervals would lose it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finesight.errors import FineSightError
from finesight.evaluation.metrics import METRICS, Values

CHUNK_BYTES = 32 * 2**20  # drawn queries of the resamples made at a time, 8 bytes each
DECIMALS = 9  # of percent points; without rounding, a resample that ties could seem won by one last bit

Classifiers = Mapping[str, Mapping[str, Mapping[str, Values]]]  # family -> variant -> metric -> (test images,)


@dataclass(frozen=True)
class Difference:
    """b − a in percent points with its interval, and the two-sided p-value of there being none."""

    mean: float
    low: float
    high: float
    p: float


def paired_bootstrap(a: ArrayLike, b: ArrayLike, **options: Any) -> Difference:
    """Compare two systems of one training each: ``paired_bootstrap_seeds`` of one run."""
    return paired_bootstrap_seeds([(a, b)], **options)


def paired_bootstrap_seeds(
    runs: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    scale: float = 100.0,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    chunk_bytes: int = CHUNK_BYTES,
) -> Difference:
    """Compare the values of each query (hits, or AP in [0, 1]) under two systems, (queries,) each, in the same order.

    The interval is the percentile interval of the mean difference over queries drawn with replacement. The p-value is
    2 · min(share of resamples ≤ 0, share ≥ 0) and at least 1 / resamples.

    Parameters
    ----------
    runs
        A pair (a, b) for each seed the systems were trained with. The queries are the same images in every
        run and therefore not new evidence: a query counts once, with its mean over the runs. How much the runs
        themselves vary is not in the interval.
    scale
        What differences are multiplied by: 100 gives percent points.
    chunk_bytes
        How much memory the draws of some resamples take at a time; it does not change the result.

    Raises
    ------
    FineSightError
        If the queries differ in number, if there are none, or if a value is not finite.
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 1 and level between 0 and 1, not {resamples} and {level}")
    difference = np.mean(scale * _differences(runs), axis=0)  # (queries,)
    rng, count = np.random.default_rng(seed), len(difference)
    means = np.empty(resamples)
    chunk = max(1, chunk_bytes // (8 * count))
    for start in range(0, resamples, chunk):
        rows = means[start : start + chunk]
        rows[:] = difference[rng.integers(count, size=(len(rows), count))].mean(axis=1)
    means = np.round(means, DECIMALS)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    p = 2 * min(np.mean(means <= 0), np.mean(means >= 0))
    return Difference(float(difference.mean()), float(low), float(high), float(np.clip(p, 1 / resamples, 1)))


def _differences(runs: Sequence[tuple[ArrayLike, ArrayLike]]) -> NDArray[np.float64]:
    """Return b − a of every run: (runs, queries)."""
    pairs = [(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)) for a, b in runs]
    lengths = {values.shape for pair in pairs for values in pair}
    if len(lengths) > 1:
        raise FineSightError(
            f"A paired comparison needs the same queries for both, but they are {_listed(lengths)}. "
            "Score both systems on the same images."
        )
    if not pairs or lengths == {(0,)}:
        raise FineSightError("There are no queries to compare.")
    if any(values.ndim != 1 for pair in pairs for values in pair):
        raise ValueError(f"one value a query is compared, not arrays of shape {_listed(lengths)}")
    differences = np.stack([b - a for a, b in pairs])
    if not np.isfinite(differences).all():
        raise FineSightError("Scores that are not finite (NaN or infinity) cannot be compared.")
    return differences


def _listed(shapes: set[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(f"{n:,}" for n in shape) for shape in sorted(shapes))


# --- one system -------------------------------------------------------------------------------------------------------


def intervals(
    values: NDArray[np.float64],
    *,
    scale: ArrayLike = 100.0,
    clusters: NDArray[np.int64] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    chunk_bytes: int = CHUNK_BYTES,
) -> NDArray[np.float64]:
    """Return percentile intervals of ``scale`` times the mean of each column: (queries, M) -> (M, 2).

    Queries are drawn with replacement, the same for every column. With ``clusters`` (queries,), whole classes are drawn
    instead: their queries search for each other and are not independent, so that the plain interval is too narrow.
    """
    if not len(values):
        raise FineSightError("There are no queries to draw from.")
    if clusters is None:
        sums, sizes = values, np.ones(len(values))
    else:
        _, number = np.unique(clusters, return_inverse=True)
        sizes = np.bincount(number).astype(np.float64)
        sums = np.stack([np.bincount(number, column) for column in values.T], axis=1)
    rng, scale = np.random.default_rng(seed), np.asarray(scale)
    means = np.empty((resamples, values.shape[1]))
    chunk = max(1, chunk_bytes // (8 * len(sums)))
    for start in range(0, resamples, chunk):
        rows = means[start : start + chunk]
        drawn = rng.integers(len(sums), size=(len(rows), len(sums))) + len(sums) * np.arange(len(rows))[:, None]
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)  # (R, queries)
        rows[:] = scale * (times @ sums) / (times @ sizes)[:, None]
    ends = np.quantile(np.round(means, DECIMALS), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(ends.T, dtype=np.float64)


def score_intervals(
    retrieval: Mapping[str, Values], labels: NDArray[np.int64], classifiers: Classifiers
) -> dict[str, Any]:
    """Return the 95 % interval of every score, under the names the scores have; ``labels`` are those of the queries.

    ``by_class`` has those of retrieval again, with whole classes drawn: see docs/protocols.md for which to believe.
    """
    queries: dict[tuple[str, ...], Values] = {("retrieval", key): values for key, values in retrieval.items()}
    images: dict[tuple[str, ...], Values] = {
        (family, variant, key): values
        for family, variants in classifiers.items()
        for variant, per_image in variants.items()
        for key, values in per_image.items()
    }
    ends = _intervals_by_path(queries) | (_intervals_by_path(images) if images else {})
    return {"level": 95} | ends | {"by_class": _intervals_by_path(queries, labels)}


def _intervals_by_path(
    values: Mapping[tuple[str, ...], Values], clusters: NDArray[np.int64] | None = None
) -> dict[str, Any]:
    """Return nested dictionaries: the interval of the path (a, b, c) stands at [a][b][c]. A path ends in a metric."""
    columns = np.stack([column.astype(np.float64) for column in values.values()], axis=1)
    scales = [METRICS[f"{path[0]}.{path[-1]}"].scale for path in values]
    nested: dict[str, Any] = {}
    for path, pair in zip(values, intervals(columns, scale=scales, clusters=clusters), strict=True):
        here = nested
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = pair.tolist()
    return nested
