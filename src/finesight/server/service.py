"""What the server does, apart from the web: search, list and group the images of a folder.

The methods block; routes call them in the work queue they belong to.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace

import numpy as np
from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.features.text_tower import TextTower
from finesight.features.types import Box, Embedder, Embedding, Floats, View
from finesight.search.base import Index
from finesight.search.clusters import Clustering
from finesight.search.notes import Notes
from finesight.server import schemas
from finesight.server.camera_store import CameraStore
from finesight.server.collection import Collection
from finesight.server.config import ServerConfig
from finesight.server.feature_sets import AFTER, FeatureSet, FeatureSets
from finesight.server.group_desk import GroupDesk
from finesight.server.image_store import ImageStore, ServedImage
from finesight.server.images import read_view
from finesight.server.job import BackgroundJob, TrainingJob
from finesight.server.judge_desk import JudgeRoom
from finesight.server.judged_sets import JudgedSets
from finesight.server.metrics import Metrics
from finesight.server.parameters import ClusterOptions, ClusterPage, ItemsPage, SearchOptions, request_box
from finesight.server.upload import UploadForm
from finesight.server.work_queue import Arrivals, ByteBudget, WorkQueue, close_queues, wait_for_queues
from finesight.version import __version__


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
    """Answer questions about the images of one folder, by one set of features or two."""

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        config: ServerConfig | None = None,
        job: BackgroundJob | None = None,
        *,
        name: str = AFTER,
        tower: TextTower | None = None,
    ) -> None:
        self.config, self.job, self.tower = config or ServerConfig(), job, tower
        self.upkeep = job if isinstance(job, TrainingJob) else None
        self.features = FeatureSets(FeatureSet(index, embedder), name)
        if self.upkeep is not None:
            self.upkeep.attach(self.features)
        self.images = ImageStore(index.meta.root, self.config)
        self.collection = Collection(
            self.features, Notes(index.notes_file()), CameraStore(self.features, index.meta.root, self.config)
        )
        self.collection.camera.start()
        self.features.renewed = self._moved
        self.groups = GroupDesk(self.collection)
        self.network = WorkQueue("the network", 1, self.config.queue)
        self.reading = WorkQueue("the index", 2, self.config.waiting)
        self.drawing = WorkQueue("pictures", 2, self.config.waiting)
        self.clustering = WorkQueue("clusters", 1, 8)
        self.measuring = WorkQueue("metrics", 1, 8)
        self.uploads, self.arrivals = ByteBudget(self.config.all_uploads_bytes), Arrivals(self.config.arriving)
        self.judging = JudgeRoom(JudgedSets(self.features, self.upkeep, self.config).find, self.config)
        self.metrics = Metrics()
        self.metrics.watch(self)

    def queues(self) -> dict[str, WorkQueue]:
        """Return the queues that requests wait in, by name."""
        own = {name: getattr(self, name) for name in ("network", "reading", "drawing", "clustering", "measuring")}
        return {**own, "judging": self.judging.asking, "judging_pictures": self.judging.drawing}

    @property
    def embedder(self) -> Embedder:
        return self.features.get().embedder

    def close(self, seconds: float) -> bool:
        """Stop all work and return whether what was under way ended within that time."""
        queues = tuple(self.queues().values())
        close_queues(*queues)
        self.collection.camera.stop()
        ended = self.job is None or self.job.stop(seconds)
        ended = wait_for_queues(*queues) and ended
        if ended:
            self.features.close()
            self.collection.notes.close()
        return ended

    def _moved(self, index: Index) -> None:
        """Take over the folder of an index that was made anew."""
        self.images.root = index.meta.root

    # --- facts ----------------------------------------------------------------------------------------------------

    def health(self) -> schemas.Health:
        """Return the state of the server and its index."""
        default = self.features.default
        features = self.features.get(default)
        items = len(features.index)
        progress = self.job.progress if self.job is not None else None
        return schemas.Health(
            status="building" if progress is not None else "ok" if items else "empty",
            version=__version__,
            items=items,
            spaces=list(features.index.meta.spaces),
            encoder=_encoder_facts(features),
            index=features.facts(),
            progress=progress,
            problem=self.job.problem if self.job is not None else None,
            projections=count_projections(features.embedder),
            words=self.tower is not None and self.tower.fingerprint == features.fingerprint,
            default_features=default,
            features=[self._features_facts(name) for name in self.features.names()],
            training=None if self.upkeep is None else self.upkeep.training(),
            verdict=None if self.upkeep is None else self.upkeep.verdict(),
        )

    def _features_facts(self, name: str) -> schemas.FeaturesFacts:
        features = self.features.get(name)
        return schemas.FeaturesFacts(
            name=name,
            items=len(features.index),
            spaces=list(features.index.meta.spaces),
            encoder=_encoder_facts(features),
            projections=count_projections(features.embedder),
        )

    def require_upkeep(self) -> TrainingJob:
        """Return what trains in the background, or raise 404."""
        if self.upkeep is None:
            raise HTTPException(404, "This server trains nothing: start it with `finesight up`.")
        return self.upkeep

    def items(self, page: ItemsPage) -> schemas.Items:
        """Return a part of the images that match, by path."""
        matching = self.collection.matching(page)
        found = self.collection.describe(self.features.get().index, matching[page.offset :][: page.limit])
        return schemas.Items(total=len(matching), items=found)

    def item(self, name: str, features: str | None = None) -> schemas.ItemFacts:
        """Return what is known of one image."""
        image = self.image(name, self.features.get(features))
        assert image.item is not None
        camera = self.collection.camera.read(image.item.id, image.item.path)
        return schemas.ItemFacts(
            **self.collection.fields(image.item),
            bytes=image.item.bytes,
            view=schemas.ViewBox.of(image.view),
            mask=mask_rows(image.mask),
            camera=None if camera is None else schemas.CameraResponse(**vars(camera)),
        )

    def image(self, name: str, features: FeatureSet) -> ServedImage:
        """Return an image as the encoder of ``features`` sees it, or raise 404. An upload may have to be embedded."""
        image = self.images.find(name, features.index)
        if image.item is not None or image.fingerprint == features.fingerprint:
            return image
        if features.fingerprint not in image.others:
            view = self.images.read_view(image, features.embedder.framing)
            embedding = self._encode(features, view)
            image.others[features.fingerprint] = replace(
                image,
                view=view.box,
                mask=embedding.mask,
                features=embedding.features,
                fingerprint=features.fingerprint,
            )
        return image.others[features.fingerprint]

    def draw(self, name: str, side: int, known_tag: str = "") -> tuple[str, bytes | None]:
        """Return a tag and a JPEG of an image of any index, as ``ImageStore.draw`` does."""
        indexes = [features.index for features in self.features.all()]
        return self.images.draw(self.images.find(name, *indexes), side, known_tag)

    def queue_for(self, name: str, features: str | None, queue: WorkQueue) -> WorkQueue:
        """Return ``queue``, or that of the network if the image is an upload that must be embedded first."""
        if not name.startswith("q"):
            return queue
        image, fingerprint = self.images.find(name), self.features.get(features).fingerprint
        return queue if fingerprint in (image.fingerprint, *image.others) else self.network

    # --- searching ------------------------------------------------------------------------------------------------

    def search_upload(self, upload: UploadForm, options: SearchOptions) -> schemas.SearchResult:
        """Embed an uploaded image, remember it, and search by it."""
        features, box = self.features.get(options.features), request_box(options.box)
        space = find_space(features, options.by)
        if upload.data is None:
            raise HTTPException(422, "file: The form has no picture in a part called 'file'.")
        start = time.perf_counter()
        view = read_view(io.BytesIO(upload.data), features.embedder.framing, self.config)
        embedding = self._encode(features, view)
        seconds = time.perf_counter() - start
        name = upload.name or "upload"
        image = self.images.add_upload(name, upload.data, view, embedding, features.fingerprint)
        return self._search(image, features, space, box, options, seconds)

    def search(self, name: str, options: SearchOptions) -> schemas.SearchResult:
        """Search by an image of the index, which is left out of the hits, or by an upload."""
        features, box = self.features.get(options.features), request_box(options.box)
        space, start = find_space(features, options.by), time.perf_counter()
        image = self.image(name, features)
        return self._search(image, features, space, box, options, time.perf_counter() - start)

    def _search(
        self,
        image: ServedImage,
        features: FeatureSet,
        space: str,
        box: Box | None,
        options: SearchOptions,
        seconds: float,
    ) -> schemas.SearchResult:
        start = time.perf_counter()
        view, mask, vector = self._embed(image, features, space, box)
        seconds += time.perf_counter() - start
        answer = features.searcher.by_vector(
            vector,
            options.k,
            by=space,
            diversity=options.diversity,
            min_score=options.min_score,
            left_out=None if image.item is None else image.item.id,
            among=self.collection.among(options),
        )
        query = schemas.SearchQuery(
            id=image.id,
            name=image.name,
            width=image.width,
            height=image.height,
            view=schemas.ViewBox.of(view),
            mask=mask_rows(mask),
        )
        notes = self.collection.notes.all()
        hits = [schemas.SearchHit(**self.collection.fields(hit, notes), score=hit.score) for hit in answer.hits]
        took = schemas.Took(embed_ms=round(1000 * seconds, 3), search_ms=round(answer.search_ms, 3))
        used = options.features or self.features.default
        return schemas.SearchResult(query=query, by=space, features=used, hits=hits, took=took)

    def _encode(self, features: FeatureSet, view: View, box: Box | None = None) -> Embedding:
        with self.metrics.embedding():
            return features.embedder.encode([view], [box])[0]

    def _embed(
        self, image: ServedImage, features: FeatureSet, space: str, box: Box | None
    ) -> tuple[Box, Floats, Floats]:
        """Return view, mask and vector. The file is read only for a box: all else is known already."""
        if box is not None:
            view = self.images.read_view(image, features.embedder.framing, box)
            embedding = self._encode(features, view, box)
            return view.box, embedding.mask, embedding.features[space]
        if image.item is None:
            return image.view, image.mask, image.features[space]
        try:
            vector = features.index.vectors(np.array([image.item.id], np.int64), space)[0]
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
        items = self.collection.describe(self.features.get(page.features).index, ids[page.offset :][: page.limit])
        return schemas.ClusterItems(id=number, size=len(ids), items=items)

    def _clusters_for(self, options: ClusterOptions) -> Clustering | None:
        count = options.count if options.method == "kmeans" else None  # HDBSCAN takes no count
        return self.features.get(options.features).clusters(options.method, count)


def find_space(features: FeatureSet, by: str | None) -> str:
    """Return the space of the index that ``by`` names, or raise 422."""
    try:
        return features.searcher.space(by)
    except FineSightError as error:
        raise HTTPException(422, f"by: {error}") from None


def _encoder_facts(features: FeatureSet) -> schemas.EncoderFacts:
    meta = features.index.meta
    return schemas.EncoderFacts(
        method=meta.method, resolution=meta.resolution, pooling=meta.spaces[0], fingerprint=meta.fingerprint
    )
