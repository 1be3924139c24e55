"""What the server knows and does, apart from the web: index, embedder, uploads, and lanes for each kind of work.

The methods here block; routes call them in the lane they belong to.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fastapi import HTTPException

from finesight.data.store import default_cache_dir
from finesight.errors import FineSightError
from finesight.features.types import Box, Embedder, Floats
from finesight.search.base import Index
from finesight.search.searcher import Searcher
from finesight.server import schemas
from finesight.server.groups import Remembered
from finesight.server.jobs import Job
from finesight.server.limits import Budget, Lane, Limits
from finesight.server.parameters import ItemsPage, SearchOptions, box_of
from finesight.server.queries import Queries, Query, new_id
from finesight.server.queries_and_items import Subject, Subjects, box_model, name_of, printable, rows, view_of
from finesight.server.thumbs import Thumbs
from finesight.server.upload import Upload
from finesight.version import __version__

FACTS_SECONDS = 2.0  # facts are read anew no more often
LISTING_SECONDS = 10.0


@dataclass(frozen=True)
class _Listing:
    """All paths of the index, ready to be looked through."""

    ids: list[int]
    lower: list[str]
    read: float


class Service:
    """One index behind the web server."""

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        limits: Limits | None = None,
        *,
        job: Job | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        self.index, self.embedder, self.limits, self.job = index, embedder, limits or Limits(), job
        self.searcher = Searcher(index, embedder)
        self.queries = Queries(self.limits.queries, self.limits.queries_bytes)
        self.thumbs = Thumbs(Path(cache_dir or default_cache_dir()) / "thumbs")
        self.subjects = Subjects(index, self.limits, self.queries, self.thumbs)
        self.network = Lane("the network", 1, self.limits.queue)
        self.reading = Lane("the index", 2, self.limits.reads)
        self.drawing = Lane("pictures", 2, self.limits.reads)
        self.grouping = Lane("clusters", 1, 8)
        self.clusters = Remembered()
        self.uploads = Budget(self.limits.uploads_bytes)
        self._lock = threading.Lock()
        self._facts: tuple[float, dict[str, object]] | None = None
        self._listed: _Listing | None = None

    def close(self, seconds: float) -> bool:
        """False if the job beside would not end in that time."""
        for lane in (self.network, self.reading, self.drawing, self.grouping):
            lane.close()
        ended = self.job is None or self.job.stop(seconds)
        if ended:
            self.index.close()
        return ended

    # --- facts ----------------------------------------------------------------------------------------------------

    def health(self) -> schemas.Health:
        meta, items = self.index.meta, len(self.index)
        stage = self.job.stage if self.job is not None else None
        return schemas.Health(
            status="building" if stage is not None else "ok" if items else "empty",
            version=__version__,
            items=items,
            spaces=list(meta.spaces),
            encoder=schemas.EncoderFacts(
                method=meta.method, resolution=meta.resolution, pooling=meta.spaces[0], fingerprint=meta.fingerprint
            ),
            index=self._index_facts(),
            progress=None if stage is None else schemas.Progress(phase=stage.phase, done=stage.done, total=stage.total),
            problem=self.job.problem if self.job is not None else None,
            projections=projections_of(self.embedder),
        )

    def _index_facts(self) -> dict[str, object]:
        """Counting what a large index takes on disk is not for every poll."""
        with self._lock:
            if self._facts is None or time.monotonic() - self._facts[0] > FACTS_SECONDS:
                self._facts = time.monotonic(), self.index.facts()
            return self._facts[1]

    def items(self, page: ItemsPage) -> schemas.Items:
        listing = self._listing()
        text = (page.text or "").lower()
        ids = [item for item, path in zip(listing.ids, listing.lower, strict=True) if text in path]
        return schemas.Items(total=len(ids), items=self.brief(ids[page.offset : page.offset + page.limit]))

    def brief(self, ids: Sequence[int]) -> list[schemas.Item]:
        """Those of them that are still there."""
        return [
            schemas.Item(
                id=str(item.id),
                path=printable(item.path),
                name=name_of(item.path),
                width=item.width,
                height=item.height,
            )
            for item in self.index.items(ids)
            if item is not None
        ]

    def item(self, name: str) -> schemas.ItemFacts:
        item = self.subjects.item(name)
        subject = self.subjects.find(name)
        return schemas.ItemFacts(
            id=name,
            path=printable(item.path),
            name=subject.name,
            width=item.width,
            height=item.height,
            bytes=item.bytes,
            view=box_model(subject.view),
            mask=rows(item.mask),
        )

    def _listing(self) -> _Listing:
        """By path; read again when the number of items changes, and now and then."""
        with self._lock:
            held = self._listed
            if held is None or len(held.ids) != len(self.index) or time.monotonic() - held.read > LISTING_SECONDS:
                known = self.index.list_items()
                order = np.argsort(known.paths, kind="stable")
                lower = [printable(path).lower() for path in known.paths[order].tolist()]
                self._listed = held = _Listing(known.ids[order].tolist(), lower, time.monotonic())
            return held

    # --- searching ------------------------------------------------------------------------------------------------

    def space(self, by: str | None) -> str:
        try:
            return self.searcher.space(by)
        except FineSightError as error:
            raise HTTPException(422, f"by: {error}") from None

    def search_upload(self, upload: Upload, options: SearchOptions) -> schemas.SearchResult:
        """Sees the picture, remembers it, and searches by it."""
        space, box = self.space(options.by), box_of(options.box)
        if upload.data is None:
            raise HTTPException(422, "file: The form has no picture in a part called 'file'.")
        start = time.perf_counter()
        stream = io.BytesIO(upload.data)
        view = view_of(stream, self.embedder.resolution, self.limits.pixels)
        embedding = self.embedder.encode([view])[0]
        spent = time.perf_counter() - start
        name = upload.name or "upload"
        self.queries.add(query := Query(new_id(), name, upload.data, view.width, view.height, view.box, embedding))
        return self._search(self.subjects.find(query.id), space, box, options, spent)

    def search(self, name: str, options: SearchOptions) -> schemas.SearchResult:
        """By an image of the index, which is left out of the hits, or by one that was uploaded."""
        space, box = self.space(options.by), box_of(options.box)
        return self._search(self.subjects.find(name), space, box, options, 0.0)

    def _search(
        self, subject: Subject, space: str, box: Box | None, options: SearchOptions, spent: float
    ) -> schemas.SearchResult:
        start = time.perf_counter()
        view, mask, vector = self._seen(subject, space, box)
        spent += time.perf_counter() - start
        left_out = None if subject.item is None else subject.item.id
        answer = self.searcher.by_vector(
            vector, options.k, by=space, diversity=options.diversity, min_score=options.min_score, left_out=left_out
        )
        hits = [
            schemas.SearchHit(
                id=str(hit.id),
                path=printable(hit.path),
                name=name_of(hit.path),
                width=hit.width,
                height=hit.height,
                score=hit.score,
            )
            for hit in answer.hits
        ]
        query = schemas.SearchQuery(
            id=subject.id,
            name=subject.name,
            width=subject.width,
            height=subject.height,
            view=box_model(view),
            mask=rows(mask),
        )
        took = schemas.Took(embed_ms=round(1000 * spent, 3), search_ms=round(answer.search_ms, 3))
        return schemas.SearchResult(query=query, by=space, hits=hits, took=took)

    def _seen(self, subject: Subject, space: str, box: Box | None) -> tuple[Box, Floats, Floats]:
        """View, mask and vector. The file is read only for a box: all else is known already."""
        if box is not None:
            view = self.subjects.look_at(subject, box)
            embedding = self.embedder.encode([view], [box])[0]
            return view.box, embedding.mask, embedding.features[space]
        if subject.query is not None:
            return subject.view, subject.mask, subject.query.embedding.features[space]
        assert subject.item is not None
        try:
            vector = self.index.vectors(np.array([subject.item.id], np.int64), space)[0]
        except FineSightError:  # dropped a moment ago
            raise HTTPException(404, "There is no image with that id in the index.") from None
        return subject.view, subject.mask, vector


def projections_of(embedder: Embedder) -> int:
    """K of the rationale where it can be shown: onnxruntime knows the mask alone."""
    encoder = getattr(embedder, "encoder", None)
    if encoder is None or encoder.branch is None or encoder.config.rationale is None:
        return 0
    return int(encoder.config.rationale.projections)
