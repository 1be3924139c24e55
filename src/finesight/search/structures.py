"""Structures that find near rows without looking at all of them: a graph, or lists of coded vectors.

Both work on few dimensions (a PCA) and by squared distance, which for unit vectors orders as the cosine does; they only
name candidates, whose exact scores are computed from the vectors themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.features.types import Floats
from finesight.search.base import Ids
from finesight.search.item_store import Structure
from finesight.search.nearest import scan

WIDTH = 256  # dimensions the structures work in
LINKS = 32  # of the graph, at each node
BUILD_EFFORT = 80  # candidates looked at for a node's links
CODE_BYTES = 64  # of a coded vector
CODE_ROUNDS = 10  # of learning the codes
LEARN = 39  # rows for each center that is learned: as many as FAISS wants
TRAIN_ROWS = 16_384  # the PCA and the codes are learned from
BLOCK = 8192
KINDS = 3  # of queries that recall is measured on
NEAR = 6  # look-alikes of an image, for queries that lie between two
# What is tried in turn until the recall is reached: (candidates, lists looked at)
EFFORTS = {
    "hnsw": ((64, 0), (128, 0), (256, 0), (512, 0), (1024, 0), (2048, 0)),
    "ivf-pq": ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128), (4096, 256)),
}


def graph_bytes(rows: int, dimension: int) -> int:
    """Memory a graph takes: vectors of few dimensions and two links' worth at the lowest level."""
    return rows * 4 * (min(dimension, WIDTH) + 2 * LINKS + 4)


def build(kind: str, vectors: Floats, seed: int = 0) -> Any:
    """A FAISS structure over all rows, read a block at a time. (rows, D)"""
    import faiss

    rows, dimension = vectors.shape
    width = min(dimension, WIDTH)
    inner: Any = faiss.index_factory(width, _recipe(kind, rows, width), faiss.METRIC_L2)
    if kind == "hnsw":
        inner.hnsw.efConstruction = BUILD_EFFORT
    else:
        inner.pq.cp.niter = CODE_ROUNDS
    random = np.random.default_rng(seed)
    sample = vectors[np.sort(random.choice(rows, min(rows, TRAIN_ROWS), replace=False))]
    index = faiss.IndexPreTransform(_principal(sample, width, random), inner)
    index.train(sample)
    for start in range(0, rows, BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    return index


def _principal(sample: Floats, width: int, random: np.random.Generator) -> Any:
    """A PCA whose axes are turned at random, so that every piece of a code has as much to tell. (n, D)

    FAISS has one too, but its solver takes more than a minute for 2048 dimensions where this takes seconds.
    """
    import faiss

    mean = sample.mean(0)
    centered = sample - mean
    axes = np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, :width].T  # (width, D), most spread first
    turn = np.linalg.qr(random.standard_normal((width, width)))[0]
    matrix = (turn @ axes).astype(np.float32)
    transform = faiss.LinearTransform(sample.shape[1], width, True)
    faiss.copy_array_to_vector(matrix.ravel(), transform.A)
    faiss.copy_array_to_vector(-(matrix @ mean).astype(np.float32), transform.b)
    transform.is_trained = True
    return transform


def _recipe(kind: str, rows: int, width: int) -> str:
    if kind == "hnsw":
        return f"HNSW{LINKS}"
    learned = min(rows, TRAIN_ROWS)
    pieces = max(n for n in range(1, CODE_BYTES + 1) if width % n == 0)
    lists = max(1, min(round(4 * rows**0.5), learned // LEARN))
    bits = 8 if learned >= 256 * LEARN else 6 if learned >= 64 * LEARN else 4
    return f"IVF{lists},PQ{pieces}x{bits}np"  # np: no polysemous training, which is slow and used by no search here


def _inner(index: Any) -> Any:
    """The structure itself, behind the PCA if there is one."""
    import faiss

    index = faiss.downcast_index(index)
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def set_probes(index: Any, probes: int) -> None:
    """How many lists are looked at; a graph has none."""
    if probes:
        _inner(index).nprobe = probes


def candidates(index: Any, queries: Floats, pool: int) -> Ids:
    """Near rows of each query, -1 where there are fewer. (n, D) -> (n, pool)

    A graph is told to keep that many nodes in view: by itself it would keep 16, however many it is asked for.
    """
    rows: Ids = index.search(np.ascontiguousarray(queries), min(pool, index.ntotal), params=_effort(index, pool))[1]
    return rows


def _effort(index: Any, pool: int) -> Any | None:
    """With each search, not set once: several threads may share a structure."""
    import faiss

    if not isinstance(_inner(index), faiss.IndexHNSW):
        return None
    make: Any = faiss  # its stubs do not know these names
    return make.SearchParametersPreTransform(index_params=make.SearchParametersHNSW(efSearch=pool))


def write(index: Any, file: Path) -> None:
    """Whole or not at all."""
    import faiss

    scratch = file.with_name(f".{file.name}.tmp")
    faiss.write_index(index, str(scratch))
    with open(scratch, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(scratch, file)


def read(folder: Path, structure: Structure) -> Any | None:
    """None for an exact search, and where the file is damaged: then too every row is looked at."""
    if structure.kind == "exact":
        return None
    import faiss

    try:
        index = faiss.read_index(str(folder / structure.file))
    except RuntimeError:
        if not (folder / structure.file).exists():
            raise FileNotFoundError(structure.file) from None  # just replaced by a newer one
        return None
    set_probes(index, structure.probes)
    return index if index.ntotal == structure.rows else None


def sample_queries(vectors: Floats, live: NDArray[np.bool_], count: int, seed: int = 0) -> Floats:
    """What people may ask. In turn: an image of the index, what lies between two look-alikes of it, and what lies
    between any two, as a picture of something else does. -> (n, D)"""
    random = np.random.default_rng(seed)
    places = np.flatnonzero(live)
    queries: Floats = np.array(vectors[np.sort(random.choice(places, min(count, len(places)), replace=False))])
    alike = queries[1::KINDS]  # views: changed in place
    for query, near in zip(alike, scan(alike.copy(), vectors, live, NEAR), strict=True):
        query += vectors[random.choice(near)]
    queries[2::KINDS] += vectors[random.choice(places, len(queries[2::KINDS]))]
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
    return queries


def recall(found: Floats, exact: Floats) -> float:
    """The share of the k best that were found, by score: of equal ones any will do. (n, k), (n, k) -> [0, 1]"""
    reached = found >= exact[:, -1:] - 1e-6
    return float(reached.mean())


def least_recall(found: Floats, exact: Floats) -> float:
    """Of the kinds of ``sample_queries``, the worst."""
    kinds = range(min(KINDS, len(exact)))
    return min(recall(found[kind::KINDS], exact[kind::KINDS]) for kind in kinds)
