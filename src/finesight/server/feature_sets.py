"""What a server searches: an index with the encoder that made it; of a run, one before training and one after it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.features.embedder import OnnxEmbedder
from finesight.features.types import Embedder, Floats
from finesight.io.natural import natural_key
from finesight.search.base import Ids, Index
from finesight.search.clusters import Clustering, cluster
from finesight.search.duplicates import DuplicateItems, find_duplicates
from finesight.search.open_embedder import open_embedder
from finesight.search.searcher import Searcher
from finesight.server.image_store import printable

BEFORE, AFTER = "before", "after"
log = logging.getLogger("finesight.server")
REBUILT_SECONDS = 1.0  # between two looks whether an index was made anew
FACTS_SECONDS = 2.0  # facts of the index are read again no more often
LISTING_SECONDS = 10.0
CLUSTERS_SECONDS = 600.0  # a changed image does not change the number of items, so clusters are found again anyway
CLUSTERS_KEPT = 4


class FeatureSet:
    """One index, what embeds its queries, and what was read of it a moment ago."""

    def __init__(self, index: Index, embedder: Embedder) -> None:
        self.index, self.embedder, self.searcher = index, embedder, Searcher(index, embedder)
        self.layout: tuple[str, Ids, Floats] | None = None  # of the map: what it is of, ids and places
        # Each cache has the time, in periods, among its keys: an entry is used until its period ends.
        self._facts = lru_cache(maxsize=1)(lambda period: index.facts())
        self._listing = lru_cache(maxsize=1)(self._read_listing)
        self._sorted: tuple[Ids, tuple[list[int], list[str]], list[str], frozenset[int]] | None = (
            None  # sorting takes seconds for a million
        )
        self._clusters = lru_cache(maxsize=CLUSTERS_KEPT)(
            lambda method, count, items, period: cluster(index, method, count) if items else None
        )

        self._duplicates = lru_cache(maxsize=2)(lambda threshold, items, period: find_duplicates(index, threshold))

    @property
    def fingerprint(self) -> str:
        return self.index.meta.fingerprint

    def facts(self) -> dict[str, object]:
        return self._facts(time.monotonic() // FACTS_SECONDS)

    def listing(self) -> tuple[list[int], list[str]]:
        """Return the ids and lower-case paths of all images, by path as people sort them: 14 before 104."""
        return self._listing(len(self.index), time.monotonic() // LISTING_SECONDS)

    def id_set(self) -> frozenset[int]:
        """Return the ids of all images."""
        self.listing()
        assert self._sorted is not None
        return self._sorted[3]

    def paths(self) -> list[str]:
        """Return the paths of ``listing`` as they are written."""
        self.listing()
        assert self._sorted is not None
        return self._sorted[2]

    def clusters(self, method: str, count: int | None) -> Clustering | None:
        """Return the clusters, found now or kept since; None of an empty index."""
        return self._clusters(method, count, len(self.index), time.monotonic() // CLUSTERS_SECONDS)

    def duplicates(self, threshold: float) -> list[DuplicateItems]:
        """Return images that are the same, found now or kept since."""
        items = len(self.index)
        return self._duplicates(threshold, items, time.monotonic() // CLUSTERS_SECONDS) if items else []

    def _read_listing(self, items: int, period: float) -> tuple[list[int], list[str]]:
        known = self.index.list_items()
        if self._sorted is None or not np.array_equal(known.ids, self._sorted[0]):
            paths = [printable(path) for path in known.paths.tolist()]
            order = sorted(range(len(paths)), key=lambda n: natural_key(paths[n]))
            listed = known.ids[order].tolist(), [paths[n].lower() for n in order]
            self._sorted = known.ids, listed, [paths[n] for n in order], frozenset(listed[0])
        return self._sorted[1]


class FeatureSets:
    """The sets of a server by name. ``prefer`` says which one a request without a name gets, if it is there."""

    def __init__(self, first: FeatureSet, name: str = AFTER) -> None:
        self._sets = {name: first}
        self.prefer: Callable[[], str] = lambda: name
        self.renewed: Callable[[Index], None] = lambda index: None  # called when an index was made anew
        self._renewing, self._looked = threading.Lock(), time.monotonic()

    def names(self) -> list[str]:
        """Return the names, before training first."""
        return sorted(self._sets, key=(BEFORE, AFTER).index)

    def all(self) -> list[FeatureSet]:
        return list(self._sets.values())

    @property
    def default(self) -> str:
        names, preferred = self.names(), self.prefer()
        return preferred if preferred in names else names[0]

    def get(self, name: str | None = None) -> FeatureSet:
        """Return the set of that name, or the default one; raise 404 if there is none."""
        found = self._sets.get(name or self.default)
        if found is None:
            raise HTTPException(404, f"There are no features of {name} training here, or not yet.")
        if time.monotonic() - self._looked > REBUILT_SECONDS:
            self._looked = time.monotonic()
            found = self._take_rebuilt(name or self.default, found)
        return found

    def _take_rebuilt(self, name: str, features: FeatureSet) -> FeatureSet:
        """Return the features of an index that was made anew in the place of the one that was opened, if so."""
        with self._renewing:
            features = self._sets.get(name, features)
            try:
                index = features.index.reopened()
                if index is None:
                    return features
                embedder = features.embedder
                if index.meta.fingerprint != features.fingerprint:
                    kind = "onnx" if isinstance(embedder, OnnxEmbedder) else "torch"
                    embedder = open_embedder(kind, index)
            except FineSightError as error:
                log.error("The index was made anew, but cannot be opened: %s", error)
                return features
            fresh = FeatureSet(index, embedder)
            self.put(name, fresh)
            self.renewed(index)
            log.warning("The index was made anew: its %d images are searched now.", len(index))
            return fresh

    def put(self, name: str, features: FeatureSet) -> None:
        """Search ``features`` under that name from now on. Requests may still be reading a set that it replaces."""
        self._sets = {**self._sets, name: features}

    def close(self) -> None:
        for features in self.all():
            features.index.close()
