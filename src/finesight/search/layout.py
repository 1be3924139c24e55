"""Lay out the images of an index in a plane, so that images that look alike are near each other.

t-SNE (van der Maaten and Hinton, JMLR 2008) of the leading principal components of a sample places the sample. Every
other image goes to the weighted mean of its nearest images of the sample, so that the time grows linearly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search.base import Ids, Index
from finesight.search.clusters import Progress, sample_vectors

SAMPLE = 3000  # images that t-SNE places: about 20 seconds on one core
WIDTH = 50  # principal components
NEIGHBORS = 8  # of the sample, that say where another image goes
SAME = 1e-5  # images whose features differ by less are copies of one picture
JITTER = 0.006  # of the width of the map: images with the same neighbors do not lie on each other


def lay_out(
    index: Index, *, space: str | None = None, sample: int = SAMPLE, seed: int = 0, tell: Progress | None = None
) -> tuple[Ids, Floats]:
    """Return the ids (n,) of all images and their places (n, 2) in [0, 1]; the same seed gives the same places.

    Raises ``FineSightError`` if the index is empty.
    """
    tell = tell or (lambda done, total: None)
    total, space = len(index), index.meta.spaces[0] if space is None else space
    if not total:
        raise FineSightError("The index is empty: there is nothing to lay out.")
    random = np.random.default_rng(seed)
    learned = sample_vectors(index, space, sample, random)
    mean = learned.mean(0)
    width = min(WIDTH, *learned.shape)
    _, _, directions = np.linalg.svd(learned - mean, full_matrices=False)
    basis = directions[:width].T.astype(np.float32)  # (D, width)
    reduced = (learned - mean) @ basis
    placed = _embed(reduced, seed)
    parts, ids, done = [np.zeros((0, 2), np.float32)], [np.zeros(0, np.int64)], 0
    for block, vectors in index.blocks(space):
        ids.append(block)
        parts.append(_place((vectors - mean) @ basis, reduced, placed, random))
        done += len(block)
        tell(done, max(done, total))
    return np.concatenate(ids), _scaled(np.concatenate(parts))


def _embed(reduced: Floats, seed: int) -> Floats:
    """Place the sample. (n, width) -> (n, 2)"""
    if len(reduced) < 5:
        flat = np.zeros((len(reduced), 2), np.float32)
        flat[:, : min(2, reduced.shape[1])] = reduced[:, :2]
        return flat
    if np.ptp(reduced, axis=0).max() < SAME:  # t-SNE would divide by zero, and end the process
        return np.zeros((len(reduced), 2), np.float32)
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(reduced) - 1) / 3)
    placed: Floats = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(reduced)
    return placed.astype(np.float32)


def _place(queries: Floats, sample: Floats, placed: Floats, random: np.random.Generator) -> Floats:
    """Return where images go that lie among the sample: the mean of the nearest, weighted by nearness."""
    count = min(NEIGHBORS, len(sample))
    squared = (queries**2).sum(1)[:, None] - 2 * queries @ sample.T + (sample**2).sum(1)[None]  # (b, n)
    nearest = np.argpartition(squared, count - 1, axis=1)[:, :count]
    distances = np.maximum(np.take_along_axis(squared, nearest, 1), 0)
    smallest = distances.min(1, keepdims=True)
    scale = np.maximum(distances.mean(1, keepdims=True), 1e-12)
    weights = np.exp(-4 * (distances - smallest) / scale)
    exact = smallest[:, 0] <= 1e-6 * np.maximum(scale[:, 0], 1)  # an image of the sample itself
    weights[exact] = distances[exact] <= smallest[exact]
    weights /= weights.sum(1, keepdims=True)
    found: Floats = np.einsum("bk,bkc->bc", weights, placed[nearest]).astype(np.float32)
    spread = float(np.ptp(placed)) or 1.0
    noise: NDArray[np.float64] = random.normal(0, JITTER * spread, found.shape)
    noise[exact] = 0
    return (found + noise).astype(np.float32)


def _scaled(places: Floats) -> Floats:
    """Return the places moved and shrunk into [0, 1], with the same scale for both axes."""
    low = places.min(0)
    size = float((places.max(0) - low).max()) or 1.0
    middle = (size - (places.max(0) - low)) / 2
    scaled: Floats = ((places - low + middle) / size).astype(np.float32)
    return scaled
