"""Search an index by a picture or by a vector."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.errors import FineSightError, SkipImage
from finesight.features.embedder import unit
from finesight.features.preprocess import Picture, check_box, picture_view
from finesight.features.types import Box, Embedder, Embedding, Floats, View
from finesight.nn.poolings import find_pooling
from finesight.search import engines
from finesight.search.base import FEATURES, Hit, Ids, Index
from finesight.search.hits import Hits
from finesight.search.nearest import search_among
from finesight.search.open_embedder import open_embedder, require_same

POOL, MIN_POOL, MAX_POOL = 5, 50, 1000  # candidates for diverse hits: so many for each hit, within these limits
MAX_HITS = 10_000  # of one search


class UnusablePicture(FineSightError):
    """The query is not a picture that can be read."""


@dataclass(frozen=True)
class Answer:
    """Hits, best first, and the view and embedding of the query where it was a picture.

    In a notebook it shows the query and the pictures that were found.
    """

    space: str
    hits: Hits
    view: View | None = None
    embedding: Embedding | None = None
    embed_ms: float = 0.0
    search_ms: float = 0.0

    def to_pandas(self) -> Any:
        """Return the hits as a ``pandas.DataFrame``, as ``Hits.to_pandas`` does."""
        return self.hits.to_pandas()

    def to_arrow(self) -> Any:
        """Return the hits as a ``pyarrow.Table``, as ``Hits.to_arrow`` does."""
        return self.hits.to_arrow()

    def _repr_html_(self) -> str:
        return self.hits._repr_html_()


class Searcher:
    """Searches an index; threads may share one. Without an embedder it searches by vectors only.

    All searches take the number of hits ``k`` and the pooling ``by`` whose features are compared: one of the index,
    ``rationale`` for the one that uses the rationale's mask, by default the index's first. ``box`` narrows the query to
    a part: x, y, width, height as shares of the picture. ``diversity`` goes from 0 (nearest first) to 1 (hits that
    differ from each other), ``min_score`` is the least cosine of a hit. What makes no sense raises ``FineSightError``.
    """

    def __init__(self, index: Index, embedder: Embedder | None = None) -> None:
        if embedder is not None:
            require_same(index, embedder, "the embedder")
        self.index, self.embedder = index, embedder

    def by_picture(
        self,
        picture: Picture,
        k: int = 10,
        *,
        by: str | None = None,
        box: Box | None = None,
        diversity: float = 0.0,
        min_score: float | None = None,
    ) -> Answer:
        """Return the images that look most like ``picture``; raise ``UnusablePicture`` if it cannot be read."""
        start = time.perf_counter()
        space = self.space(by)
        view, embedding = self.embed_picture(picture, box)
        middle = time.perf_counter()
        hits = self._hits(embedding.features[space], k, space, diversity, min_score, None, view=view)
        end = time.perf_counter()
        return Answer(space, hits, view, embedding, 1000 * (middle - start), 1000 * (end - middle))

    def by_vector(
        self,
        vector: Floats,
        k: int = 10,
        *,
        by: str | None = None,
        diversity: float = 0.0,
        min_score: float | None = None,
        left_out: int | None = None,
        among: Ids | None = None,
    ) -> Answer:
        """Return the images nearest to a feature (D,) of any length, as ``Encoder.embed`` makes it.

        Only images of ``among`` are found, if it is given.
        """
        space = self.space(by)
        query = np.asarray(vector, np.float32).reshape(-1)
        width = self.index.meta.width(space)
        if len(query) != width or not np.isfinite(query).all():
            raise FineSightError(f"The query must be {width} finite numbers.")
        start = time.perf_counter()
        hits = self._hits(unit(query), k, space, diversity, min_score, left_out, among)
        return Answer(space, hits, search_ms=1000 * (time.perf_counter() - start))

    def embed_picture(self, picture: Picture, box: Box | None = None) -> tuple[View, Embedding]:
        """Embed a picture, or a part of it; raise ``UnusablePicture`` if it cannot be read."""
        if self.embedder is None:
            raise FineSightError("This searcher has no embedder: it can search by vectors only.")
        box = None if box is None else check_box(box)
        try:
            view = picture_view(picture, self.embedder.framing, box)
        except SkipImage as skip:
            name = picture if isinstance(picture, (str, Path)) else "The picture"
            raise UnusablePicture(f"{name} cannot be used: {skip}") from None
        return view, self.embedder.encode([view], [box])[0]

    def space(self, by: str | None) -> str:
        """Return the space of the index that ``by`` names; raise ``FineSightError`` if there is none."""
        spaces = self.index.meta.spaces
        if by is None:
            return spaces[0]
        if by in spaces:
            return by
        if by == "rationale" and (named := [space for space in spaces if find_pooling(space).needs_branch]):
            return named[0]
        raise FineSightError(f"The index cannot be searched by {by!r}. It can by: {', '.join(spaces)}.")

    def _hits(
        self,
        query: Floats,
        k: int,
        space: str,
        diversity: float,
        min_score: float | None,
        left_out: int | None,
        among: Ids | None = None,
        view: View | None = None,
    ) -> Hits:
        if not 1 <= k <= MAX_HITS:
            raise FineSightError(f"The number of hits must be between 1 and {MAX_HITS:,}, not {k}.")
        if not 0 <= diversity <= 1:
            raise FineSightError(f"Diversity must be between 0 and 1, not {diversity:g}.")
        if min_score is not None and math.isnan(min_score):
            raise FineSightError("The minimum score must be a number: no score is above or below nan.")
        pool = k if not diversity else max(k, min(MAX_POOL, max(MIN_POOL, POOL * k)))
        wanted = pool + (left_out is not None)
        if among is None:
            scores, ids = (found[0] for found in self.index.search(query[None], wanted, space))
        else:
            scores, ids = search_among(self.index, query, wanted, space, among)
        keep = (ids >= 0) & (ids != (-1 if left_out is None else left_out))
        if min_score is not None:
            keep &= scores >= min_score
        scores, ids = scores[keep][:pool], ids[keep][:pool]
        if diversity:
            order = diversify(scores, self.index.vectors(ids, space), k, diversity)
            scores, ids = scores[order], ids[order]
        items = self.index.items(ids[:k].tolist())
        hits = (
            Hit(item.id, item.path, score, item.width, item.height)
            for item, score in zip(items, scores[:k].tolist(), strict=True)
            if item is not None
        )
        return Hits(hits, root=self.index.meta.root, query=view, by=space)


def diversify(scores: Floats, vectors: Floats, k: int, diversity: float) -> Ids:
    """Return the order of k candidates by maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).

    Each next one has the highest (1 − d) · score − d · (cosine to the nearest chosen before). (n,), (n, D) -> (k,)
    """
    order: list[int] = []
    nearest = np.zeros(len(scores))
    left = np.ones(len(scores), bool)
    for _ in range(min(k, len(scores))):
        worth = np.where(left, (1 - diversity) * scores - diversity * nearest, -np.inf)
        chosen = int(worth.argmax())
        order.append(chosen)
        left[chosen] = False
        alike = vectors @ vectors[chosen]
        nearest = alike if len(order) == 1 else np.maximum(nearest, alike)
    return np.array(order, np.int64)


def open_index(where: str | Path, engine: str | None = None) -> Searcher:
    """Open an index for searching: a folder, a run that has one, ``milvus://host:port/collection`` or ``FILE.db``.

    ``engine`` embeds the queries: torch, or onnx, which is the default where torch is not installed.
    Raises ``FineSightError`` if there is none or its encoder cannot be loaded. An index of features from a file
    has no encoder: it is searched by vectors.
    """
    index = engines.open_index(where)
    return Searcher(index, None if index.meta.method == FEATURES else open_embedder(engine, index))


def search_images(
    where: str | Path,
    image: Picture,
    k: int = 10,
    *,
    by: str | None = None,
    box: Box | None = None,
    diversity: float = 0.0,
    min_score: float | None = None,
    engine: str | None = None,
) -> Hits:
    """Return the images of an index that look most like ``image``. For many searches use ``open_index`` once.

    The options are those of ``Searcher``. In a notebook, what is returned shows the pictures.
    """
    searcher = open_index(where, engine)
    try:
        return searcher.by_picture(image, k, by=by, box=box, diversity=diversity, min_score=min_score).hits
    finally:
        searcher.index.close()
