"""The route /api/duplicates: images that are the same, and which of them is best. Nothing is ever deleted."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Request, Response

from finesight.search.base import IndexItem
from finesight.search.duplicates import DuplicateItems
from finesight.server import schemas
from finesight.server.images import read_small
from finesight.server.parameters import DuplicatesPage
from finesight.server.routes import Service, answer, problems
from finesight.server.safe_files import open_inside
from finesight.server.service import SearchService

SHARPNESS_SIDE = 512  # pixels of the longest side that copies are compared at
copies_router = APIRouter(prefix="/api", responses=problems())


@copies_router.get("/duplicates", response_model=schemas.Duplicates, summary="Images that are copies of one another")
async def duplicates(request: Request, service: Service, page: Annotated[DuplicatesPage, Query()]) -> Response:
    """The largest group first. It may take a while; asked again, it does not."""
    return answer(await service.clustering.run(request, lambda: find_copies(service, page)))


def find_copies(service: SearchService, page: DuplicatesPage) -> schemas.Duplicates:
    """Return a part of the groups of copies."""
    found = service.features.get().duplicates(page.threshold)
    shown = [_describe(service, one, page.keep) for one in found[page.offset :][: page.limit]]
    return schemas.Duplicates(total=len(found), others=sum(len(one.items) - 1 for one in found), groups=shown)


def _describe(service: SearchService, found: DuplicateItems, keep: str) -> schemas.CopiesResponse:
    """Return one group; by default the order is that of the library, most pixels first."""
    pairs = zip(found.items, found.scores, strict=True)
    rows = [(item, score, sharpness(service, item) if keep == "sharpest" else None) for item, score in pairs]
    rows.sort(key=lambda row: -(row[2] or 0.0))  # stable: unmeasured ones stay as they are
    copies = [
        schemas.Copy(**service.collection.fields(item), score=score, bytes=item.bytes, sharpness=sharp)
        for item, score, sharp in rows
    ]
    return schemas.CopiesResponse(kind=found.kind, items=copies)


def sharpness(service: SearchService, item: IndexItem) -> float | None:
    """Return the variance of the Laplacian of an image in gray, all at the same size; None if it cannot be read."""
    try:
        stream, _ = open_inside(service.images.root, item.path)
        with stream:
            image = read_small(stream, SHARPNESS_SIDE, service.config).convert("L")
    except HTTPException:
        return None
    longest = max(image.size)
    size = max(1, round(image.width * SHARPNESS_SIDE / longest)), max(1, round(image.height * SHARPNESS_SIDE / longest))
    gray = np.asarray(image.resize(size), np.float32)
    if min(gray.shape) < 3:
        return 0.0
    middle = gray[1:-1, 1:-1]
    edges = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:] - 4 * middle
    return float(edges.var())
