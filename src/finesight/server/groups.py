"""Clusters of the index. Finding them takes a while, so the last few are remembered until the index changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import HTTPException

from finesight.search.base import Index
from finesight.search.clusters import Clusters, cluster
from finesight.server import schemas
from finesight.server.parameters import ClusterOptions, ClusterPage

if TYPE_CHECKING:
    from finesight.server.service import Service

SHOWN = 12  # images of each cluster in the overview
KEPT = 4  # results that are remembered
SECONDS = 600.0  # … for so long: an image that changed does not change their number


@dataclass(frozen=True)
class _Held:
    clusters: Clusters
    items: int  # of the index they were found in
    found: float


class Remembered:
    """What was found lately. Two who ask for the same at a time wait for one answer."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int | None], _Held] = OrderedDict()
        self._lock = threading.Lock()

    def clusters(self, index: Index, options: ClusterOptions) -> Clusters | None:
        """None of an empty index. HDBSCAN takes no count: one that is sent along is not looked at."""
        count = options.count if options.method == "kmeans" else None
        key = (options.method, count)
        with self._lock:
            items = len(index)
            if not items:
                return None
            held = self._kept.get(key)
            if held is None or held.items != items or time.monotonic() - held.found > SECONDS:
                held = _Held(cluster(index, options.method, count), items, time.monotonic())
                self._kept[key] = held
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return held.clusters


def overview(service: Service, options: ClusterOptions) -> schemas.Clusters:
    found = service.clusters.clusters(service.index, options)
    if found is None:
        return schemas.Clusters(method=options.method, clusters=[], unclustered=0)
    groups = [
        schemas.Cluster(id=number, size=size, items=[str(item) for item in found.members(number)[:SHOWN].tolist()])
        for number, size in enumerate(found.sizes)
    ]
    return schemas.Clusters(method=options.method, clusters=groups, unclustered=found.unclustered)


def one_cluster(service: Service, number: int, page: ClusterPage) -> schemas.ClusterItems:
    found = service.clusters.clusters(service.index, page)
    count = 0 if found is None else len(found)
    if found is None or number >= count:
        raise HTTPException(404, f"There is no cluster {number}: there are {count}.")
    ids = found.members(number).tolist()
    shown = service.brief(ids[page.offset : page.offset + page.limit])
    return schemas.ClusterItems(id=number, size=len(ids), items=shown)
