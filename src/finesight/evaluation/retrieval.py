"""Leave-one-out retrieval: how often the images most like an image show the same class.

Every similarity is exact. Unit features are rounded to multiples of 2⁻²⁴ (as fine as float32 is near 1), so
that a float64 dot product of two of them fits its 53 bits whatever the order of summation. Copies of an image
therefore tie exactly, and no chunk size or thread count changes a rank.

Narrow features are rounded once and compared by blocks of images. A rounded copy of wide ones would be as large as
themselves or twice so; they are rounded and compared by blocks of columns, which sums up to the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from finesight.errors import FineSightError
from finesight.evaluation.metrics import METRICS, Values, retrieval_metrics
from finesight.features.wide import Features, WideRows, is_wide, row_lengths

CHUNK_BYTES = 256 * 2**20  # similarities of one chunk of queries with the whole gallery
BLOCK_BYTES = 64 * 2**20  # the part of the gallery held in float64 at a time
QUANTUM = 2.0**-24

Compare = Callable[[NDArray[np.int64], torch.Tensor], None]  # fills (Q, N): chosen images by all
Ties = Literal["first", "last"]  # which of equally similar images ranks before the others, by index


@dataclass(frozen=True, eq=False)
class RetrievalScores:
    """What each query gave, in image order, so that scores can be resampled later."""

    per_query: Mapping[str, Values]  # key of a metric -> (queries,)
    lone: int = 0  # labeled images that are alone in their class and so have nothing to find

    @property
    def queries(self) -> int:
        return len(next(iter(self.per_query.values())))

    def score(self, key: str) -> float:
        """Return the score of the metric ``key``, in percent."""
        return METRICS[f"retrieval.{key}"].score(self.per_query[key])

    def summary(self) -> dict[str, float | int]:
        """Return the scores alone, ready for JSON."""
        scores: dict[str, float | int] = {key: self.score(key) for key in self.per_query}
        return scores | {"queries": self.queries, "lone": self.lone}


def retrieval(
    features: Features,
    labels: NDArray[np.int64],
    *,
    ties: Ties = "first",
    chunk: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> RetrievalScores:
    """Score features (N, D) as the paper does: each image queries all others by cosine.

    Every registered metric of retrieval is computed. Equal similarities rank by image index, the last first where
    ``ties`` says so (a sorted list read backwards, as in the released code). An image alone in its class has nothing
    to find: it is counted in ``lone`` and stays in the gallery to be found wrongly. Images without a label (-1) take no
    part. ``chunk`` queries are compared at a time with ``block_bytes`` of the gallery; no score depends on either.
    """
    labels = np.asarray(labels)
    if labels.shape != (len(features),):
        raise ValueError(f"{len(features)} features but labels of shape {labels.shape}")
    labeled = labels >= 0
    labels = labels[labeled]
    members = _members(labels)
    query = np.flatnonzero([len(members[label]) > 1 for label in labels.tolist()])
    _check_labels(len(members), len(query), len(labels))

    metrics = retrieval_metrics()
    per_query: dict[str, Values] = {metric.key: np.empty(len(query), dtype=metric.dtype) for metric in metrics}
    for n, (image, scores) in enumerate(_rows(_comparison(features, labeled, block_bytes), len(labels), query, chunk)):
        same = members[int(labels[image])]
        positions = _positions(scores, same[same != image], ties)  # (P,) ascending, from 1
        for metric in metrics:
            per_query[metric.key][n] = metric.value(positions, len(labels) - 1)
    return RetrievalScores(per_query, lone=len(labels) - len(query))


def neighbors(features: Features, queries: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the k images most like each query, without itself, and their cosines: (Q, k) each, most alike first.

    With fewer than k other images, all of them are returned.
    """
    query = np.asarray(queries, dtype=np.int64)
    k = max(0, min(k, len(features) - 1))
    nearest = np.empty((len(query), k), dtype=np.int64)
    cosine = np.empty((len(query), k), dtype=np.float32)
    compare = _comparison(features, np.ones(len(features), dtype=bool))
    for n, (_, scores) in enumerate(_rows(compare, len(features), query, None)):
        nearest[n] = nearest_first(scores, k)
        cosine[n] = scores[nearest[n]]
    return nearest, cosine


def nearest_first(cosines: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the k largest, descending; of equal ones the first. Sorts only those that can be among them."""
    if not k:
        return np.zeros(0, np.int64)
    least = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
    candidates = np.flatnonzero(cosines >= least)
    return candidates[np.argsort(-cosines[candidates], kind="stable")[:k]]


def cross_rows(queries: Features, gallery: Features, chunk: int | None = None) -> Iterator[NDArray[np.float64]]:
    """Yield the cosines of each query with every image of another set (N,), as exact as those within one.

    They share one buffer: a row is good until the next is asked for.
    """
    chunk = max(1, min(len(queries), chunk or CHUNK_BYTES // (8 * max(1, len(gallery)))))
    buffer = torch.empty(chunk, len(gallery), dtype=torch.float64)
    if is_wide(gallery):
        asked, searched = _scaled(queries), _scaled(gallery)
    else:
        unit = _unit(np.asarray(gallery))
    for start in range(0, len(queries), chunk):
        rows, part = buffer[: len(queries) - start], slice(start, start + chunk)
        if is_wide(gallery):
            _wide_similarities((asked[0][part], asked[1][part]), searched, rows)
        else:
            _similarities(_unit(np.asarray(queries[part])), unit, rows)
        yield from rows.numpy()


def _members(labels: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Return the images of each class, ascending."""
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    return dict(zip(classes.tolist(), np.split(order, starts[1:]), strict=True)) if len(classes) else {}


def _check_labels(classes: int, queries: int, labeled: int) -> None:
    if labeled == 0:
        raise FineSightError(
            "Retrieval needs class labels and no image has one. "
            "Give a folder with one sub-folder per class, or a list with a label column."
        )
    if classes == 1:
        raise FineSightError(
            f"Retrieval needs at least two classes, but all {labeled} labeled images are of one class: "
            "every neighbor would be right. Give images of more classes."
        )
    if queries == 0:
        raise FineSightError(
            f"Retrieval needs a class with at least two images, but each of the {classes} classes has one. "
            "Give more images per class."
        )


def _check_finite(values: NDArray[np.float64]) -> None:
    if not np.isfinite(values).all():
        raise FineSightError(
            "The features hold values that are not finite (NaN or infinity): the network has diverged. "
            "Evaluate an earlier checkpoint or train with a lower learning rate."
        )


def _comparison(features: Features, kept: NDArray[np.bool_], block_bytes: int = BLOCK_BYTES) -> Compare:
    """Return what compares some of the kept images with all of them."""
    if is_wide(features):
        wide, length = _scaled(WideRows.of(features)[kept])
        return lambda images, out: _wide_similarities((wide[images], length[images]), (wide, length), out, block_bytes)
    gallery = _unit(np.asarray(features)[kept])
    return lambda images, out: _similarities(gallery[images], gallery, out, block_bytes)


def _scaled(features: Features) -> tuple[WideRows, torch.Tensor]:
    """Return the rows and what to divide each by."""
    wide = WideRows.of(features)
    length = row_lengths(wide)
    _check_finite(length)
    return wide, torch.from_numpy(np.where(length > 0, length, 1.0))


def _unit(features: NDArray[np.float32]) -> torch.Tensor:
    """Return rows of length 1 (a zero row stays zero) in multiples of 2⁻²⁴, which float32 holds exactly up to 1."""
    unit = np.empty(features.shape, dtype=np.float32)
    step = max(1, BLOCK_BYTES // (8 * max(1, features.shape[1])))
    for start in range(0, len(features), step):
        block = np.ascontiguousarray(features[start : start + step], dtype=np.float64)
        _check_finite(block)
        norm = np.linalg.norm(block, axis=1, keepdims=True)
        block = np.divide(block, norm, out=np.zeros_like(block), where=norm > 0)
        unit[start : start + step] = np.round(block / QUANTUM) * QUANTUM
    return torch.from_numpy(unit)


def _rows(
    compare: Compare, images: int, query: NDArray[np.int64], chunk: int | None
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield each query with its similarities to all images (N,), its own set to -inf so that it ranks last.

    Chunks share one buffer: a row is good until the next is asked for.
    """
    chunk = min(len(query), chunk or max(1, CHUNK_BYTES // (8 * max(1, images))))
    buffer = torch.empty(chunk, images, dtype=torch.float64)
    for chosen in np.split(query, range(chunk, len(query), max(1, chunk))):
        scores = buffer[: len(chosen)]
        compare(chosen, scores)
        scores[torch.arange(len(chosen)), chosen] = -torch.inf
        yield from zip(chosen.tolist(), scores.numpy(), strict=True)


def _similarities(
    queries: torch.Tensor, gallery: torch.Tensor, out: torch.Tensor, block_bytes: int = BLOCK_BYTES
) -> None:
    """Fill ``out`` (Q, N) with the exact inner products of (Q, D) and (N, D)."""
    step = max(1, block_bytes // (8 * max(1, gallery.shape[1])))
    queries = queries.double()
    for start in range(0, len(gallery), step):
        block = gallery[start : start + step].double()
        torch.mm(queries, block.T, out=out[:, start : start + step])


def _wide_similarities(
    queries: tuple[WideRows, torch.Tensor],
    gallery: tuple[WideRows, torch.Tensor],
    out: torch.Tensor,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Fill ``out`` (Q, N) with the exact cosines of (Q, D) and (N, D), given with the lengths of their rows."""
    step = max(1, block_bytes // (8 * max(1, len(gallery[0]))))
    out.zero_()
    for start in range(0, gallery[0].shape[1], step):
        columns = slice(start, start + step)
        out.addmm_(_rounded(*queries, columns), _rounded(*gallery, columns).T)


def _rounded(features: WideRows, length: torch.Tensor, columns: slice) -> torch.Tensor:
    """Return some columns of the unit features, in multiples of 2⁻²⁴."""
    block = features[:, columns].tensor(torch.float64)
    return block.div_(length[:, None]).div_(QUANTUM).round_().mul_(QUANTUM)


def _positions(scores: NDArray[np.float64], positives: NDArray[np.int64], ties: Ties = "first") -> NDArray[np.int64]:
    """Return the positions of the positives in the descending ranking, from 1, ascending.

    Sorting values is some ten times faster than a stable argsort, which is needed only if a positive ties.
    """
    ascending = np.sort(scores)
    wanted = scores[positives]
    after = np.searchsorted(ascending, wanted, side="right")
    if (after - np.searchsorted(ascending, wanted, side="left") == 1).all():
        return np.sort(len(scores) - after + 1)
    position = np.empty(len(scores), dtype=np.int64)
    order = np.argsort(-scores, kind="stable") if ties == "first" else np.argsort(scores, kind="stable")[::-1]
    position[order] = np.arange(1, len(scores) + 1)
    return np.sort(position[positives])
