"""What the server does, apart from the web: search, list and group the images of one index.

The methods block; routes call them in the work queue they belong to.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.features.types import Box, Embedder, Floats
from finesight.search.base import Hit, Index, IndexItem
from finesight.search.clusters import Clustering, cluster
from finesight.search.searcher import Searcher
from finesight.server import schemas
from finesight.server.config import ServerConfig
from finesight.server.image_store import ImageStore, ServedImage, file_name, printable
from finesight.server.images import read_view
from finesight.server.job import BackgroundJob
from finesight.server.parameters import ClusterOptions, ClusterPage, ItemsPage, SearchOptions, request_box
from finesight.server.upload import UploadForm
from finesight.server.work_queue import ByteBudget, WorkQueue
from finesight.version import __version__

FACTS_SECONDS = 2.0  # facts of the index are read again no more often
LISTING_SECONDS = 10.0
CLUSTERS_SECONDS = 600.0  # a changed image does not change the number of items, so clusters are found again anyway
CLUSTERS_KEPT = 4


def mask_rows(mask: Floats) -> list[list[float]]:
    """Return a map for JSON, with five digits: more than a screen shows."""
    return [[round(value, 5) for value in row] for row in mask.tolist()]


def count_projections(embedder: Embedder) -> int:
    """Return K of the rationale if its projections can be shown: onnxruntime knows the mask alone."""
    encoder = getattr(embedder, "encoder", None)
    if encoder is None or encoder.branch is None or encoder.config.rationale is None:
        return 0
    return int(encoder.config.rationale.projections)


class SearchService:
    """Answer questions about one index."""

    def __init__(
        self, index: Index, embedder: Embedder, config: ServerConfig | None = None, job: BackgroundJob | None = None
    ) -> None:
        self.index, self.embedder, self.config, self.job = index, embedder, config or ServerConfig(), job
        self.images = ImageStore(index, self.config)
        self.network = WorkQueue("the network", 1, self.config.queue)
        self.reading = WorkQueue("the index", 2, self.config.waiting)
        self.drawing = WorkQueue("pictures", 2, self.config.waiting)
        self.clustering = WorkQueue("clusters", 1, 8)
        self.uploads = ByteBudget(self.config.all_uploads_bytes)
        self._searcher = Searcher(index, embedder)
        # Each cache has the time, in periods, among its keys: an entry is used until its period ends.
        self._facts = lru_cache(maxsize=1)(lambda period: index.facts())
        self._listing = lru_cache(maxsize=1)(self._read_listing)
        self._clusters = lru_cache(maxsize=CLUSTERS_KEPT)(
            lambda method, count, items, period: cluster(index, method, count) if items else None
        )

    def close(self, seconds: float) -> bool:
        """Stop all work and return whether the background job ended within that time."""
        for queue in (self.network, self.reading, self.drawing, self.clustering):
            queue.close()
        ended = self.job is None or self.job.stop(seconds)
        if ended:
            self.index.close()
        return ended

    # --- facts ----------------------------------------------------------------------------------------------------

    def health(self) -> schemas.Health:
        """Return the state of the server and its index."""
        meta, items = self.index.meta, len(self.index)
        progress = self.job.progress if self.job is not None else None
        return schemas.Health(
            status="building" if progress is not None else "ok" if items else "empty",
            version=__version__,
            items=items,
            spaces=list(meta.spaces),
            encoder=schemas.EncoderFacts(
                method=meta.method, resolution=meta.resolution, pooling=meta.spaces[0], fingerprint=meta.fingerprint
            ),
            index=self._facts(time.monotonic() // FACTS_SECONDS),
            progress=progress,
            problem=self.job.problem if self.job is not None else None,
            projections=count_projections(self.embedder),
        )

    def items(self, page: ItemsPage) -> schemas.Items:
        """Return a part of the images whose path holds a text, by path."""
        ids, paths = self._listing(len(self.index), time.monotonic() // LISTING_SECONDS)
        text = (page.text or "").lower()
        matching = [item for item, path in zip(ids, paths, strict=True) if text in path]
        return schemas.Items(total=len(matching), items=self._describe(matching[page.offset :][: page.limit]))

    def item(self, name: str) -> schemas.ItemFacts:
        """Return what is known of one image."""
        image = self.images.find(name)
        assert image.item is not None
        return schemas.ItemFacts(
            **_item_fields(image.item),
            bytes=image.item.bytes,
            view=schemas.ViewBox.of(image.view),
            mask=mask_rows(image.mask),
        )

    def _read_listing(self, items: int, period: float) -> tuple[list[int], list[str]]:
        """Return the ids and lower-case paths of all images, by path."""
        known = self.index.list_items()
        order = np.argsort(known.paths, kind="stable")
        return known.ids[order].tolist(), [printable(path).lower() for path in known.paths[order].tolist()]

    def _describe(self, ids: Sequence[int]) -> list[schemas.ItemResponse]:
        """Return those of the images that are still there."""
        return [schemas.ItemResponse(**_item_fields(item)) for item in self.index.items(ids) if item is not None]

    # --- searching ------------------------------------------------------------------------------------------------

    def space(self, by: str | None) -> str:
        """Return the space of the index that ``by`` names, or raise 422."""
        try:
            return self._searcher.space(by)
        except FineSightError as error:
            raise HTTPException(422, f"by: {error}") from None

    def search_upload(self, upload: UploadForm, options: SearchOptions) -> schemas.SearchResult:
        """Embed an uploaded image, remember it, and search by it."""
        space, box = self.space(options.by), request_box(options.box)
        if upload.data is None:
            raise HTTPException(422, "file: The form has no picture in a part called 'file'.")
        start = time.perf_counter()
        view = read_view(io.BytesIO(upload.data), self.embedder.resolution, self.config)
        embedding = self.embedder.encode([view])[0]
        seconds = time.perf_counter() - start
        image = self.images.add_upload(upload.name or "upload", upload.data, view, embedding)
        return self._search(image, space, box, options, seconds)

    def search(self, name: str, options: SearchOptions) -> schemas.SearchResult:
        """Search by an image of the index, which is left out of the hits, or by an upload."""
        space, box = self.space(options.by), request_box(options.box)
        return self._search(self.images.find(name), space, box, options, 0.0)

    def _search(
        self, image: ServedImage, space: str, box: Box | None, options: SearchOptions, seconds: float
    ) -> schemas.SearchResult:
        start = time.perf_counter()
        view, mask, vector = self._embed(image, space, box)
        seconds += time.perf_counter() - start
        answer = self._searcher.by_vector(
            vector,
            options.k,
            by=space,
            diversity=options.diversity,
            min_score=options.min_score,
            left_out=None if image.item is None else image.item.id,
        )
        query = schemas.SearchQuery(
            id=image.id,
            name=image.name,
            width=image.width,
            height=image.height,
            view=schemas.ViewBox.of(view),
            mask=mask_rows(mask),
        )
        hits = [schemas.SearchHit(**_item_fields(hit), score=hit.score) for hit in answer.hits]
        took = schemas.Took(embed_ms=round(1000 * seconds, 3), search_ms=round(answer.search_ms, 3))
        return schemas.SearchResult(query=query, by=space, hits=hits, took=took)

    def _embed(self, image: ServedImage, space: str, box: Box | None) -> tuple[Box, Floats, Floats]:
        """Return view, mask and vector. The file is read only for a box: all else is known already."""
        if box is not None:
            view = self.images.read_view(image, box)
            embedding = self.embedder.encode([view], [box])[0]
            return view.box, embedding.mask, embedding.features[space]
        if image.item is None:
            return image.view, image.mask, image.features[space]
        try:
            vector = self.index.vectors(np.array([image.item.id], np.int64), space)[0]
        except FineSightError:  # removed a moment ago
            raise HTTPException(404, "There is no image with that id in the index.") from None
        return image.view, image.mask, vector

    # --- clusters -------------------------------------------------------------------------------------------------

    def clusters(self, options: ClusterOptions) -> schemas.ClustersResponse:
        """Return all clusters with the images nearest to their centers."""
        found = self._clusters_for(options)
        if found is None:
            return schemas.ClustersResponse(method=options.method, clusters=[], unclustered=0)
        groups = []
        for number, size in enumerate(found.sizes):
            nearest = found.members(number)[: schemas.CLUSTER_IMAGES].tolist()
            groups.append(schemas.Cluster(id=number, size=size, items=[str(item) for item in nearest]))
        return schemas.ClustersResponse(method=options.method, clusters=groups, unclustered=found.unclustered)

    def cluster_items(self, number: int, page: ClusterPage) -> schemas.ClusterItems:
        """Return a part of one cluster, or raise 404."""
        found = self._clusters_for(page)
        count = 0 if found is None else len(found)
        if found is None or number >= count:
            raise HTTPException(404, f"There is no cluster {number}: there are {count}.")
        ids = found.members(number).tolist()
        items = self._describe(ids[page.offset :][: page.limit])
        return schemas.ClusterItems(id=number, size=len(ids), items=items)

    def _clusters_for(self, options: ClusterOptions) -> Clustering | None:
        """Return the clusters, found now or kept since; None of an empty index."""
        count = options.count if options.method == "kmeans" else None  # HDBSCAN takes no count
        return self._clusters(options.method, count, len(self.index), time.monotonic() // CLUSTERS_SECONDS)


def _item_fields(item: IndexItem | Hit) -> dict[str, str | int]:
    return {
        "id": str(item.id),
        "path": printable(item.path),
        "name": file_name(item.path),
        "width": item.width,
        "height": item.height,
    }
