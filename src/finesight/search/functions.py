"""``finesight.open_index`` and ``finesight.search_images``. With the engine ``onnx`` nothing imports torch."""

from __future__ import annotations

from pathlib import Path

from finesight.features.preprocess import Picture
from finesight.features.types import Box
from finesight.search.base import Hit
from finesight.search.engines import open_index as find_index
from finesight.search.open_embedder import open_embedder
from finesight.search.searcher import Searcher


def open_index(where: str | Path, engine: str = "torch") -> Searcher:
    """Open an index for searching: a folder, a run that has one, ``milvus://host:port/collection`` or ``FILE.db``.

    Raises
    ------
    FineSightError
        If there is no index, or its encoder cannot be loaded.
    """
    index = find_index(where)
    return Searcher(index, open_embedder(engine, index))


def search_images(
    where: str | Path,
    image: Picture,
    k: int = 10,
    *,
    by: str | None = None,
    box: Box | None = None,
    diversity: float = 0.0,
    min_score: float | None = None,
    engine: str = "torch",
) -> tuple[Hit, ...]:
    """Return the images of an index that look most like ``image``. For many searches use ``open_index`` once."""
    searcher = open_index(where, engine)
    try:
        return searcher.by_picture(image, k, by=by, box=box, diversity=diversity, min_score=min_score).hits
    finally:
        searcher.index.close()
