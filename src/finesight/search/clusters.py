"""Cluster the images of an index by k-means, or by HDBSCAN, which finds the number of clusters by itself.

Memory is bounded whatever the size of the index: both learn from a sample, and then every image is assigned to its
nearest cluster, a block at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from finesight.errors import FineSightError, unknown
from finesight.features.embedder import unit
from finesight.features.types import Floats
from finesight.search.base import Ids, Index

METHODS = ("kmeans", "hdbscan")
KMEANS_NUMBERS = 1 << 25  # k-means learns from as many: 16,384 images of 2048 dimensions
ITERATIONS = 30
MAX_DEFAULT = 200  # clusters, unless more are asked for
HDBSCAN_SAMPLE = 10_000  # its time grows with the square
HDBSCAN_WIDTH = 32  # dimensions: density means little in many
MIN_SIZE, SIZE_SHARE, MAX_MIN_SIZE = 3, 100, 50  # images of a cluster of HDBSCAN: a hundredth, within limits
INSIDE = 5  # percent of a cluster's sample that lie further out than what may join it
UNCLUSTERED = -1
COPY = 1e-6  # squared distance that two equal vectors may have by rounding

Progress = Callable[[int, int], None]  # done, total


@dataclass(frozen=True)
class Clustering:
    """Images with the labels of their clusters. The largest cluster is number 0; -1 means in no cluster."""

    method: str
    space: str
    ids: Ids  # (n,)
    labels: Ids  # (n,)
    distances: Floats  # (n,) 1 − cosine to the center of its cluster, or to the nearest one
    centers: Floats  # (clusters, D) of length 1

    def __len__(self) -> int:
        return len(self.centers)

    @cached_property
    def sizes(self) -> list[int]:
        counts: list[int] = np.bincount(self.labels[self.labels >= 0], minlength=len(self)).tolist()
        return counts

    @property
    def unclustered(self) -> int:
        return int((self.labels == UNCLUSTERED).sum())

    @cached_property
    def _by_cluster(self) -> tuple[Ids, Ids]:
        """Return positions in ``ids`` by cluster, nearest to the center first, and where each cluster begins."""
        order = np.lexsort((self.ids, self.distances, self.labels))
        return order, np.searchsorted(self.labels[order], np.arange(len(self) + 1))

    def positions(self, cluster: int) -> Ids:
        """Return the positions of a cluster's images in ``ids``, nearest to the center first; -1: of those in none."""
        order, begins = self._by_cluster
        return order[: begins[0]] if cluster == UNCLUSTERED else order[begins[cluster] : begins[cluster + 1]]

    def members(self, cluster: int) -> Ids:
        """Return the ids of a cluster's images, nearest to the center first."""
        return self.ids[self.positions(cluster)]


def cluster(
    index: Index,
    method: str = "kmeans",
    count: int | None = None,
    *,
    space: str | None = None,
    seed: int = 0,
    sample: int | None = None,
    tell: Progress | None = None,
) -> Clustering:
    """Cluster the images of an index by the features of ``space``; the same seed gives the same clusters.

    ``count`` is for k-means, by default √(n/2) and at most 200. At most ``sample`` images are learned from, by default
    as many as fit in memory. An empty index, or a method or count that makes no sense, raises ``FineSightError``.
    """
    if method not in METHODS:
        raise unknown("way to cluster", method, METHODS)
    if method == "hdbscan" and count is not None:
        raise FineSightError("HDBSCAN finds the number of clusters by itself: a count is for k-means.")
    if count is not None and count < 1:
        raise FineSightError(f"There cannot be {count} clusters.")
    total, space = len(index), index.meta.spaces[0] if space is None else space
    if not total:
        raise FineSightError("The index is empty: there is nothing to cluster.")
    random = np.random.default_rng(seed)
    if method == "kmeans":
        learned = sample_vectors(index, space, sample or max(1, KMEANS_NUMBERS // index.meta.width(space)), random)
        wanted = min(count or default_count(total), len(learned))
        centers = kmeans(learned, first_centers(learned, wanted, random))
        reach, given = np.full(len(centers), -np.inf, np.float32), None
    else:
        most = sample or HDBSCAN_SAMPLE
        centers, reach, labels = _hdbscan(sample_vectors(index, space, most, random), seed)
        given = labels if total <= most else None
    ids, labels, scores = _assign(index, space, centers, reach, given, tell or (lambda done, total: None))
    sizes = np.bincount(labels[labels >= 0], minlength=len(centers))
    order = np.argsort(-sizes, kind="stable")[: int((sizes > 0).sum())]  # the largest first, without empty ones
    number = np.full(len(centers) + 1, UNCLUSTERED, np.int64)  # the last is for -1
    number[order] = np.arange(len(order))
    return Clustering(method, space, ids, number[labels], np.maximum(0, 1 - scores), centers[order])


def default_count(images: int) -> int:
    return max(1, min(MAX_DEFAULT, round(math.sqrt(images / 2))))


def sample_vectors(index: Index, space: str, most: int, random: np.random.Generator) -> Floats:
    """Return at most ``most`` random vectors of an index, in its order. -> (n, D)"""
    total = len(index)
    chosen = np.sort(random.choice(total, min(total, most), replace=False))
    parts, start = [], 0
    for _, rows in index.blocks(space):
        here = chosen[(chosen >= start) & (chosen < start + len(rows))] - start
        parts.append(np.array(rows[here], np.float32))
        start += len(rows)
    return np.concatenate(parts)


def first_centers(sample: Floats, count: int, random: np.random.Generator) -> Floats:
    """Choose centers by k-means++: each next one is drawn by its squared distance to those chosen before.

    Arthur and Vassilvitskii, SODA 2007. There are fewer than ``count`` where only copies are left. (n, D) -> (k, D)
    """
    chosen = [int(random.integers(len(sample)))]
    distance = np.full(len(sample), np.inf)
    for _ in range(count - 1):
        distance = np.minimum(distance, 2 - 2 * (sample @ sample[chosen[-1]]))
        weights = np.where(distance > COPY, distance, 0.0)
        if not weights.any():
            break
        chosen.append(int(random.choice(len(sample), p=weights / weights.sum())))
    return np.ascontiguousarray(sample[chosen])


def kmeans(sample: Floats, start: Floats) -> Floats:
    """Run spherical k-means from the given centers. (n, D), (k, D) -> (k, D)"""
    import faiss

    learner = faiss.Kmeans(
        sample.shape[1],
        len(start),
        niter=ITERATIONS,
        spherical=True,
        seed=1,
        min_points_per_centroid=1,
        max_points_per_centroid=len(sample),
    )
    learner.train(np.ascontiguousarray(sample), init_centroids=start)
    return unit(np.asarray(learner.centroids, np.float32))


def _hdbscan(sample: Floats, seed: int) -> tuple[Floats, Floats, Ids]:
    """Return centers of dense groups, the least cosine to each that belongs to it, and the labels of the sample.

    Campello et al., PAKDD 2013. (n, D) -> (k, D), (k,), (n,)
    """
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA

    least = max(MIN_SIZE, min(MAX_MIN_SIZE, len(sample) // SIZE_SHARE))
    labels = np.full(len(sample), UNCLUSTERED, np.int64)
    if len(sample) > least:
        width = min(HDBSCAN_WIDTH, *sample.shape)
        reduced = PCA(width, svd_solver="randomized", random_state=seed).fit_transform(sample)
        labels = HDBSCAN(min_cluster_size=least, copy=True).fit_predict(reduced).astype(np.int64)
    groups = [sample[labels == label] for label in range(labels.max() + 1)]
    centers = unit(np.array([group.mean(0) for group in groups], np.float32).reshape(-1, sample.shape[1]))
    reach = [np.percentile(group @ center, INSIDE) for group, center in zip(groups, centers, strict=True)]
    return centers, np.array(reach, np.float32), labels


def _assign(
    index: Index, space: str, centers: Floats, reach: Floats, given: Ids | None, tell: Progress
) -> tuple[Ids, Ids, Floats]:
    """Assign every image to the nearest center if it lies within its reach, a block at a time, unless labels are given.

    Returns ids, labels and cosines to the center, each (n,).
    """
    ids, labels, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    done, total = 0, len(index)
    for block, rows in index.blocks(space):
        products = rows @ centers.T if len(centers) else np.full((len(rows), 1), -1, np.float32)  # (b, k)
        nearest, own = products.argmax(1), np.arange(len(rows))
        if given is not None:  # what was added to the index meanwhile is in no cluster
            piece = given[done : done + len(rows)]
            label = np.pad(piece, (0, len(rows) - len(piece)), constant_values=UNCLUSTERED)
        elif len(centers):
            label = np.where(products[own, nearest] >= reach[nearest], nearest, UNCLUSTERED)
        else:
            label = np.full(len(rows), UNCLUSTERED)
        ids.append(block)
        labels.append(label)
        scores.append(products[own, np.where(label >= 0, label, nearest)])
        done += len(rows)
        tell(done, max(done, total))
    return np.concatenate(ids), np.concatenate(labels), np.concatenate(scores)
