"""Search an index by words, where a CLIP-like network made its features."""

from __future__ import annotations

import time

import numpy as np

from finesight.errors import FineSightError
from finesight.features.text_tower import SPACE, TextTower
from finesight.search.base import Hit, Ids, Index
from finesight.search.hits import Hits
from finesight.search.searcher import MAX_HITS, Answer


def search_words(
    index: Index,
    tower: TextTower,
    words: str,
    k: int = 10,
    *,
    min_score: float | None = None,
    among: Ids | None = None,
) -> Answer:
    """Return the images that fit the words best; only those of ``among``, if it is given.

    Every image is compared, without any structure that makes searches faster. Scores are cosines between words and
    pictures: for CLIP they are around 0.3 where both fit. No words, or an index of another network, raise
    ``FineSightError``.
    """
    words = " ".join(words.split())
    if not words:
        raise FineSightError("There are no words to search by.")
    if not 1 <= k <= MAX_HITS:
        raise FineSightError(f"The number of hits must be between 1 and {MAX_HITS:,}, not {k}.")
    if index.meta.fingerprint != tower.fingerprint:
        raise FineSightError(f"The index was not made by the network of {tower.name}.")
    start = time.perf_counter()
    vector = tower.vector(words)
    middle = time.perf_counter()
    scores, ids = np.zeros(0, np.float32), np.zeros(0, np.int64)
    for block, vectors in index.blocks(SPACE):
        found = tower.scores(vectors, vector)
        keep = np.ones(len(block), bool) if among is None else np.isin(block, among)
        if min_score is not None:
            keep &= found >= min_score
        scores, ids = np.concatenate([scores, found[keep]]), np.concatenate([ids, block[keep]])
        best = np.lexsort((ids, -scores))[:k]
        scores, ids = scores[best], ids[best]
    items = index.items(ids.tolist())
    hits = (
        Hit(item.id, item.path, score, item.width, item.height)
        for item, score in zip(items, scores.tolist(), strict=True)
        if item is not None
    )
    took = time.perf_counter() - middle
    return Answer(SPACE, Hits(hits, root=index.meta.root, by=SPACE), None, None, 1000 * (middle - start), 1000 * took)
