"""Exact neighbors among rows that may not fit in memory. Faster structures are measured against these."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search.base import Ids, Index

ROWS = 8192  # read at a time
SCORES = 1 << 24  # of queries × rows kept at a time
DEEPER = 8  # times as many neighbors are looked at first where only some images are wanted
MOST_DEEP = 2000
FEW = 5000  # images whose vectors are read one by one
SLACK = 1e-5  # more than float32 products of the same two vectors differ by, in whatever order they are summed


def scan(
    queries: Floats, vectors: Floats, live: NDArray[np.bool_], k: int, *, block: int = ROWS, held: int = SCORES
) -> Iterator[Ids]:
    """Yield for each query the rows that may be among its k best. (n, D), (rows, D), (rows,) -> n times (≥ k,)

    All that tie with the k-th are among them, so that ``rank`` can order ties by id. ``block`` rows are read at a time
    and about ``held`` scores kept; neither changes the result.
    """
    step = max(1, held // max(1, len(vectors)))
    for start in range(0, len(queries), step):
        piece = queries[start : start + step]
        scores = np.empty((len(piece), len(vectors)), np.float32)
        for begin in range(0, len(vectors), block):
            rows = np.asarray(vectors[begin : begin + block])
            np.matmul(piece, rows.T, out=scores[:, begin : begin + block])
        scores[:, ~live] = -np.inf
        for row in scores:
            yield _best(row, k)


def _best(scores: Floats, k: int) -> Ids:
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        return np.flatnonzero(scores >= max(least, np.finfo(np.float32).min) - SLACK)
    return np.flatnonzero(scores > -np.inf)


def rank(query: Floats, rows: Ids, vectors: Floats, ids: Ids, k: int) -> tuple[Floats, Ids]:
    """Return scores (k,) and ids (k,) of the k best of ``rows``, by exact score, then by id; -1 where there are fewer.

    Scores are computed in double precision and row by row, so that equal vectors have equal scores in any row.
    """
    wide, rows = query.astype(np.float64), _likely(query, rows, vectors, k)
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        scores[start : start + ROWS] = np.einsum("rd,d->r", vectors[part].astype(np.float64), wide)
    found = ids[rows]
    order = np.lexsort((found, -scores))[:k]
    best_scores, best_ids = np.full(k, -1, np.float32), np.full(k, -1, np.int64)
    best_scores[: len(order)] = np.minimum(scores[order], 1)
    best_ids[: len(order)] = found[order]
    return best_scores, best_ids


def _likely(query: Floats, rows: Ids, vectors: Floats, k: int) -> Ids:
    """Return those of ``rows`` that may be among the k best, by single precision, which is several times as fast."""
    if len(rows) <= 2 * k:
        return rows
    scores = [vectors[rows[start : start + ROWS]] @ query for start in range(0, len(rows), ROWS)]
    return rows[_best(np.concatenate(scores), k)]


def search_among(index: Index, query: Floats, k: int, space: str, among: Ids) -> tuple[Floats, Ids]:
    """Return scores (k,) and ids (k,) of the k nearest of the images ``among``; -1 where there are fewer. (D,) -> (k,)

    The neighbors among all images are looked at first. Where too few of them are wanted, all wanted ones are compared.
    """
    deep = min(DEEPER * k, MOST_DEEP, max(1, len(index)))
    scores, ids = (found[0] for found in index.search(query[None], deep, space))
    near = np.isin(ids, among)
    if near.sum() >= k:
        return scores[near][:k], ids[near][:k]
    parts_ids, parts_scores = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for block, vectors in vectors_of(index, among, space):
        parts_ids.append(block)
        parts_scores.append(np.einsum("rd,d->r", vectors.astype(np.float64), query.astype(np.float64)))
    found, cosines = np.concatenate(parts_ids), np.concatenate(parts_scores).astype(np.float32)
    order = np.lexsort((found, -cosines))[:k]
    best_scores, best_ids = np.full(k, -1, np.float32), np.full(k, -1, np.int64)
    best_scores[: len(order)], best_ids[: len(order)] = np.minimum(cosines[order], 1), found[order]
    return best_scores, best_ids


def vectors_of(index: Index, among: Ids, space: str) -> Iterator[tuple[Ids, Floats]]:
    """Yield ids and vectors of those of the images that are in the index."""
    if len(among) <= FEW:
        try:
            yield among, index.vectors(among, space)
            return
        except FineSightError:
            pass  # one was removed a moment ago: those that are left are in the blocks
    for ids, vectors in index.blocks(space):
        wanted = np.isin(ids, among)
        if wanted.any():
            yield ids[wanted], vectors[wanted]
