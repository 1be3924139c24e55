"""What a server searches: an index with the encoder that made it; of a run, one before training and one after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from fastapi import HTTPException

from finesight.features.types import Embedder
from finesight.search.base import Index
from finesight.search.clusters import Clustering, cluster
from finesight.search.searcher import Searcher
from finesight.server.image_store import printable

BEFORE, AFTER = "before", "after"
FACTS_SECONDS = 2.0  # facts of the index are read again no more often
LISTING_SECONDS = 10.0
CLUSTERS_SECONDS = 600.0  # a changed image does not change the number of items, so clusters are found again anyway
CLUSTERS_KEPT = 4


class FeatureSet:
    """One index, what embeds its queries, and what was read of it a moment ago."""

    def __init__(self, index: Index, embedder: Embedder) -> None:
        self.index, self.embedder, self.searcher = index, embedder, Searcher(index, embedder)
        # Each cache has the time, in periods, among its keys: an entry is used until its period ends.
        self._facts = lru_cache(maxsize=1)(lambda period: index.facts())
        self._listing = lru_cache(maxsize=1)(self._read_listing)
        self._clusters = lru_cache(maxsize=CLUSTERS_KEPT)(
            lambda method, count, items, period: cluster(index, method, count) if items else None
        )

    @property
    def fingerprint(self) -> str:
        return self.index.meta.fingerprint

    def facts(self) -> dict[str, object]:
        return self._facts(time.monotonic() // FACTS_SECONDS)

    def listing(self) -> tuple[list[int], list[str]]:
        """Return the ids and lower-case paths of all images, by path."""
        return self._listing(len(self.index), time.monotonic() // LISTING_SECONDS)

    def clusters(self, method: str, count: int | None) -> Clustering | None:
        """Return the clusters, found now or kept since; None of an empty index."""
        return self._clusters(method, count, len(self.index), time.monotonic() // CLUSTERS_SECONDS)

    def _read_listing(self, items: int, period: float) -> tuple[list[int], list[str]]:
        known = self.index.list_items()
        order = np.argsort(known.paths, kind="stable")
        return known.ids[order].tolist(), [printable(path).lower() for path in known.paths[order].tolist()]


class FeatureSets:
    """The sets of a server by name. ``prefer`` says which one a request without a name gets, if it is there."""

    def __init__(self, first: FeatureSet, name: str = AFTER) -> None:
        self._sets = {name: first}
        self.prefer: Callable[[], str] = lambda: name

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
        return found

    def put(self, name: str, features: FeatureSet) -> None:
        """Search ``features`` under that name from now on. Requests may still be reading a set that it replaces."""
        self._sets = {**self._sets, name: features}

    def close(self) -> None:
        for features in self.all():
            features.index.close()
