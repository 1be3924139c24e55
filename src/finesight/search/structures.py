"""FAISS structures that find near rows without comparing all of them: a graph, or inverted lists of coded vectors.

Both work on few dimensions (a PCA) and by squared distance, which orders unit vectors as the cosine does. They only
name candidates, whose exact scores are computed from the vectors. A structure is kept only if its recall suffices.
"""

from __future__ import annotations

import errno
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finesight.features.types import Floats
from finesight.io.atomic import atomic_path
from finesight.search.base import Ids
from finesight.search.item_store import Structure
from finesight.search.nearest import scan

if TYPE_CHECKING:
    from finesight.search.snapshot import Snapshot

WIDTH = 256  # dimensions the structures work in
LINKS = 32  # of the graph, at each node
BUILD_EFFORT = 80  # candidates compared for a node's links
CODE_BYTES = 64  # of a coded vector
CODE_ROUNDS = 10  # of learning the codes
LEARN = 39  # rows for each center that is learned: as many as FAISS wants
TRAIN_ROWS = 16_384  # the PCA and the codes are learned from
BLOCK = 8192
MIN_RECALL = 0.95  # at 10
TARGET_RECALL = 0.97  # recall is measured on a sample, so a little more is aimed at
RECALL_QUERIES = 300  # recall is measured on
K = 10
MAX_TAIL_SHARE = 0.1  # of rows added after a structure was built; above it the structure is built anew
QUERY_KINDS = 3  # of queries that recall is measured on
NEAR = 6  # look-alikes of an image, for queries that lie between two
# What is tried in turn until the recall is reached: (candidates, lists that are searched)
EFFORTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "hnsw": ((64, 0), (128, 0), (256, 0), (512, 0), (1024, 0), (2048, 0)),
    "ivf-pq": ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128), (4096, 256)),
}


@dataclass(frozen=True)
class FaissLimits:
    """When which structure is built."""

    exact_numbers: int = 20_000 * 2048  # multiplied in some 15 ms: up to there every row is compared
    graph_bytes: int = 2 * 2**30  # memory that graphs may take
    min_recall: float = MIN_RECALL
    efforts: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=lambda: EFFORTS)


def fit_structure(now: Snapshot, space: str, folder: Path, limits: FaissLimits) -> Structure:
    """Return the structure there is if it still serves, else a new one that finds enough, else "exact"."""
    (rows, dimension), held = now.vectors[space].shape, now.structures.get(space)
    exact = Structure(space, now.state.generation, rows, "exact", "", 0, 0, 1.0, 0, 0.0)
    if rows * dimension <= limits.exact_numbers:
        return exact
    whole = held is not None and (not held.file or now.loaded.get(held.file) is not None)
    if held is not None and held.queries and whole and rows - held.rows <= MAX_TAIL_SHARE * rows:
        return held
    graph = rows * 4 * (min(dimension, WIDTH) + 2 * LINKS + 4)  # bytes: few dimensions, two links' worth at the bottom
    fits = graph * len(now.vectors) <= limits.graph_bytes
    for kind in ("hnsw", "ivf-pq") if fits else ("ivf-pq",):  # a graph may fall apart where images come in tight groups
        made = _build_and_measure(now, replace(exact, kind=kind), folder, limits)
        if made.file:
            break
    return made


def _build_and_measure(now: Snapshot, plan: Structure, folder: Path, limits: FaissLimits) -> Structure:
    """Build a structure and raise the effort of its searches until the recall is reached."""
    start, vectors = time.monotonic(), now.vectors[plan.space]
    index = build(plan.kind, vectors)
    queries = sample_queries(vectors, now.live, RECALL_QUERIES)
    best = now.exact(queries, K, plan.space)[0]
    reached = replace(plan, kind="exact", queries=len(queries))  # says it was tried: not again at a small change
    file = f"{plan.space}-{plan.generation}-{plan.rows}.faiss"
    for pool, probes in limits.efforts[plan.kind]:
        _set_probes(index, probes)
        tried = replace(plan, file=file, pool=pool, probes=probes, queries=len(queries))
        share = worst_recall(now.by_structure(queries, K, plan.space, tried, index)[0], best)
        if share >= limits.min_recall:
            reached = replace(tried, recall=share, seconds=round(time.monotonic() - start, 1))
        if share >= max(TARGET_RECALL, limits.min_recall):
            break
    if reached.file:
        import faiss

        with atomic_path(folder / file, sync=True) as scratch:
            try:
                faiss.write_index(index, str(scratch))
            except RuntimeError as error:  # the disk is full, or fails
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            reached = replace(reached, checksum=_file_sum(scratch))
    return reached


def _file_sum(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


def build(kind: str, vectors: Floats, seed: int = 0) -> Any:
    """Build a FAISS structure over all rows, (rows, D), which are read a block at a time."""
    import faiss

    rows, dimension = vectors.shape
    width = min(dimension, WIDTH)
    inner: Any
    if kind == "hnsw":
        inner = faiss.index_factory(width, f"HNSW{LINKS}", faiss.METRIC_L2)
        inner.hnsw.efConstruction = BUILD_EFFORT
    else:
        inner = faiss.index_factory(width, _lists_of_codes(rows, width), faiss.METRIC_L2)
        inner.pq.cp.niter = CODE_ROUNDS
    random = np.random.default_rng(seed)
    sample = vectors[np.sort(random.choice(rows, min(rows, TRAIN_ROWS), replace=False))]
    index = faiss.IndexPreTransform(_random_pca(sample, width, random), inner)
    index.train(sample)
    for start in range(0, rows, BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    return index


def _random_pca(sample: Floats, width: int, random: np.random.Generator) -> Any:
    """Return a PCA whose axes are rotated at random, so that every piece of a code carries as much. (n, D)

    FAISS has one too, but its solver takes more than a minute for 2048 dimensions where this takes seconds.
    """
    import faiss

    mean = sample.mean(0)
    centered = sample - mean
    axes = np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, :width].T  # (width, D), most variance first
    rotation = np.linalg.qr(random.standard_normal((width, width)))[0]
    matrix = (rotation @ axes).astype(np.float32)
    transform = faiss.LinearTransform(sample.shape[1], width, True)
    faiss.copy_array_to_vector(matrix.ravel(), transform.A)
    faiss.copy_array_to_vector(-(matrix @ mean).astype(np.float32), transform.b)
    transform.is_trained = True
    return transform


def _lists_of_codes(rows: int, width: int) -> str:
    """Return FAISS's words for inverted lists whose number and codes can be learned from so many rows."""
    learned = min(rows, TRAIN_ROWS)
    pieces = max(n for n in range(1, CODE_BYTES + 1) if width % n == 0)
    lists = max(1, min(round(4 * rows**0.5), learned // LEARN))
    bits = 8 if learned >= 256 * LEARN else 6 if learned >= 64 * LEARN else 4
    return f"IVF{lists},PQ{pieces}x{bits}np"  # np: no polysemous training, which is slow and used by no search here


def _inner(index: Any) -> Any:
    """Return the structure itself, behind the PCA if there is one."""
    import faiss

    index = faiss.downcast_index(index)
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def _set_probes(index: Any, probes: int) -> None:
    """Set how many lists are searched; a graph has none."""
    if probes:
        _inner(index).nprobe = probes


def candidates(index: Any, queries: Floats, pool: int) -> Ids:
    """Return near rows of each query, -1 where there are fewer. (n, D) -> (n, pool)

    A graph keeps only 16 nodes in view unless it is told to keep ``pool``. That goes with each search, because several
    threads may share a structure.
    """
    import faiss

    library: Any = faiss  # its stubs do not know these names
    params = None
    if isinstance(_inner(index), faiss.IndexHNSW):
        params = library.SearchParametersPreTransform(index_params=library.SearchParametersHNSW(efSearch=pool))
    rows: Ids = index.search(np.ascontiguousarray(queries), min(pool, index.ntotal), params=params)[1]
    return rows


def read(folder: Path, structure: Structure) -> Any | None:
    """Load a structure; return None where search is exact or the file is damaged: then every row is compared.

    Raises ``FileNotFoundError`` if the file is gone because a newer one replaced it.
    """
    if structure.kind == "exact":
        return None
    import faiss

    if structure.checksum is not None and _file_sum(folder / structure.file) != structure.checksum:
        return None
    try:
        index = faiss.read_index(str(folder / structure.file))
    except RuntimeError:
        if not (folder / structure.file).exists():
            raise FileNotFoundError(structure.file) from None
        return None
    _set_probes(index, structure.probes)
    return index if index.ntotal == structure.rows else None


def sample_queries(vectors: Floats, live: NDArray[np.bool_], count: int, seed: int = 0) -> Floats:
    """Return queries like those of users, (n, D). In turn: an image of the index, the middle between two look-alikes,
    and the middle between any two, as a picture of something else is."""
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(live)
    queries: Floats = np.array(vectors[np.sort(random.choice(rows, min(count, len(rows)), replace=False))])
    alike = queries[1::QUERY_KINDS]  # a view: changed in place
    for query, near in zip(alike, scan(alike.copy(), vectors, live, NEAR), strict=True):
        query += vectors[random.choice(near)]
    queries[2::QUERY_KINDS] += vectors[random.choice(rows, len(queries[2::QUERY_KINDS]))]
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
    return queries


def worst_recall(found: Floats, exact: Floats) -> float:
    """Return the share of the k best scores that were found, for the worst kind of ``sample_queries``.

    Scores are compared, not ids: of equal ones any will do. (n, k), (n, k) -> [0, 1]
    """
    reached = found >= exact[:, -1:] - 1e-6
    return min(float(reached[kind::QUERY_KINDS].mean()) for kind in range(min(QUERY_KINDS, len(exact))))
