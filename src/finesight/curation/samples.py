"""Images with what is known about each, as labeling tools take them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finesight.curation.findings import Cleaning, Neighbor, find_neighbors, label_of, split_of
from finesight.data.places import address, is_address
from finesight.data.sources import ImageSource
from finesight.features.embedder import unit
from finesight.features.types import Floats
from finesight.search.base import Ids
from finesight.search.clusters import default_count, first_centers, kmeans

NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # what neither XML nor UTF-8 can hold
CLUSTER_SAMPLE = 16_384  # images that clusters are learned from


@dataclass(frozen=True)
class Sample:
    """One image for a labeling tool."""

    name: str  # relative to the data folder, POSIX; absolute for an image outside of it
    file: str  # absolute, or an address
    width: int
    height: int
    label: str | None
    split: str | None
    wrong: float | None  # the probability that the label is wrong
    suggested: str | None  # the label that the others vote for
    suspect: bool  # whether `finesight clean` lists its label
    group: int | None  # of copies of one picture
    copy: str | None  # kind of copy; None for the one to keep and for images without copies
    outlier: tuple[str, ...]  # why; empty for ordinary images
    distance: float
    cluster: int
    uniqueness: float  # 1 − cosine to the nearest other image
    neighbors: tuple[Neighbor, ...]
    embedding: Floats  # (D,) of length 1

    @property
    def tags(self) -> list[str]:
        """What a person wants to filter by."""
        wanted = {
            "suspect": self.suspect,
            "duplicate": self.copy is not None,
            "outlier": bool(self.outlier),
            self.split or "": self.split is not None,
        }
        return [name for name, holds in wanted.items() if holds]


def image_name(source: ImageSource, path: str) -> str:
    """Return the name of an image for other tools: relative to the folder of the source where it lies below it."""
    if not os.path.isabs(path):
        return os.path.normpath(path)
    inside = os.path.relpath(path, source.root)
    return path if inside.startswith("..") else inside


def is_text(text: str) -> bool:
    """Return whether a name or label can be written into JSON and XML files that other programs read."""
    return NO_TEXT.search(text) is None


def make_samples(found: Cleaning, seed: int = 0) -> Iterator[Sample]:
    """Yield the images in order, without those whose name or label is no text that other programs read."""
    source = found.source
    copies = {copy.image: (number, copy) for number, group in enumerate(found.duplicates) for copy in group.images}
    keepers = {group.images[0].image for group in found.duplicates}
    outliers = {one.image: one.why for one in found.outliers}
    suspects = {one.image for one in found.suspects}
    vectors = unit(np.asarray(found.features, np.float32))
    clusters = _clusters(vectors, seed)
    for i in range(len(source)):
        name, label = image_name(source, str(source.paths[i])), label_of(source, i)
        if not is_text(name) or (label is not None and not is_text(label)):
            continue
        file = source.file(i)
        group, copy = copies.get(i, (None, None))
        labeled = found.wrong is not None and found.suggested is not None and label is not None
        yield Sample(
            name=name,
            file=address(file) if is_address(file) else str(Path(file).absolute()),
            width=int(found.sizes[i, 0]),
            height=int(found.sizes[i, 1]),
            label=label,
            split=split_of(source, i),
            wrong=float(found.wrong[i]) if labeled and found.wrong is not None else None,
            suggested=source.classes[found.suggested[i]] if labeled and found.suggested is not None else None,
            suspect=i in suspects,
            group=group,
            copy=None if copy is None or i in keepers else copy.kind,
            outlier=outliers.get(i, ()),
            distance=float(found.distance[i]),
            cluster=int(clusters[i]),
            uniqueness=max(0.0, 1 - float(found.cosines[i, 0])) if found.cosines.shape[1] else 1.0,
            neighbors=tuple(n for n in find_neighbors(source, found.nearest, found.cosines, i) if is_text(n.path)),
            embedding=vectors[i],
        )


def _clusters(vectors: Floats, seed: int) -> Ids:
    """Return the k-means cluster of each image, the largest first. (n, D) -> (n,)"""
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(len(vectors), min(len(vectors), CLUSTER_SAMPLE), replace=False))
    sample = np.ascontiguousarray(vectors[chosen])
    centers = kmeans(sample, first_centers(sample, min(default_count(len(vectors)), len(sample)), random))
    own = (vectors @ centers.T).argmax(1)
    order = np.argsort(-np.bincount(own, minlength=len(centers)), kind="stable")
    clusters: Ids = np.argsort(order)[own]
    return clusters
