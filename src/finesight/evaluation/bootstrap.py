"""Is one system better than another, or was it the choice of queries? A paired bootstrap over the queries.

Two systems that search the same images mostly fail on the same ones, so their difference is known far better than
either score. Resampling the per-query *difference* keeps that; two separate intervals would throw it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finesight.errors import FineSightError

CHUNK_BYTES = 32 * 2**20  # drawn queries of the resamples made at a time, 8 bytes each
DECIMALS = 9  # of percent points: below them a resample is its rounding, and one that ties would seem won


@dataclass(frozen=True)
class Difference:
    """b − a in percent points with its interval, and the two-sided p-value of there being none."""

    mean: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Difference:
    """Compare what each query gave (hits, or AP in [0, 1]) under two systems; (queries,) each, in the same order.

    The percentile interval of the mean difference over queries drawn with replacement, and the two-sided p-value
    2 · min(share of resamples ≤ 0, share ≥ 0), which cannot be told below 1 / resamples.
    """
    return paired_bootstrap_seeds([(a, b)], resamples=resamples, seed=seed, level=level)


def paired_bootstrap_seeds(
    runs: Sequence[tuple[ArrayLike, ArrayLike]], *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Difference:
    """The same for systems trained with several seeds, one pair (a, b) each.

    The queries are the same images in every run, so they are not new evidence: a query counts once, with its mean
    over the runs. How much the runs themselves vary is not in the interval.
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 1 and level between 0 and 1, not {resamples} and {level}")
    difference = np.mean(_differences(runs), axis=0)  # (queries,)
    means = np.round(_resampled_means(difference, resamples, np.random.default_rng(seed)), DECIMALS)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    p = 2 * min(np.mean(means <= 0), np.mean(means >= 0))
    return Difference(float(difference.mean()), float(low), float(high), float(np.clip(p, 1 / resamples, 1)))


def _differences(runs: Sequence[tuple[ArrayLike, ArrayLike]]) -> NDArray[np.float64]:
    """(runs, queries) in percent points."""
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
    found = 100 * np.stack([b - a for a, b in pairs])
    if not np.isfinite(found).all():
        raise FineSightError("Scores that are not finite (NaN or infinity) cannot be compared.")
    return found


def _listed(shapes: set[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(f"{n:,}" for n in shape) for shape in sorted(shapes))


def _resampled_means(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means over as many draws with replacement as there are values; the same whatever the chunk."""
    count = len(values)
    chunk = max(1, CHUNK_BYTES // (8 * count))
    means = np.empty(resamples)
    for start in range(0, resamples, chunk):
        rows = means[start : start + chunk]
        rows[:] = values[rng.integers(count, size=(len(rows), count))].mean(axis=1)
    return means


# --- one system -------------------------------------------------------------------------------------------------------


def intervals(
    values: NDArray[np.float64],
    *,
    clusters: NDArray[np.int64] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> NDArray[np.float64]:
    """Percentile intervals of the mean of each column, in percent: (queries, M) in [0, 1] -> (M, 2).

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
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, values.shape[1]))
    chunk = max(1, CHUNK_BYTES // (8 * len(sums)))
    for start in range(0, resamples, chunk):
        rows = means[start : start + chunk]
        times = _times_drawn(len(sums), len(rows), rng)  # (R, queries)
        rows[:] = 100 * (times @ sums) / (times @ sizes)[:, None]
    ends = np.quantile(np.round(means, DECIMALS), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(ends.T, dtype=np.float64)


def _times_drawn(count: int, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How often each of ``count`` is among as many draws with replacement; a row a resample."""
    drawn = rng.integers(count, size=(resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float64)
