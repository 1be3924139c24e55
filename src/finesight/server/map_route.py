"""The routes below /api/map: the images of the index in a plane, computed once and kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Request, Response

from finesight.data.store import default_cache_dir
from finesight.features.types import Floats
from finesight.io.atomic import write_atomic
from finesight.io.natural import natural_key
from finesight.search.base import Ids
from finesight.search.layout import lay_out
from finesight.search.notes import NOTHING
from finesight.server import schemas
from finesight.server.feature_sets import FeatureSet
from finesight.server.routes import FeaturesQuery, Service, answer, problems
from finesight.server.service import SearchService

VERSION = 1  # of how images are laid out
map_router = APIRouter(prefix="/api/map", responses=problems())


@map_router.get(
    "",
    response_class=Response,
    responses={
        **problems(404),
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    },
    summary="Where the images lie in a plane",
)
async def places(request: Request, service: Service, features: FeaturesQuery = None) -> Response:
    """Of n images: 2n numbers x, y in [0, 1] (float32, little-endian), then n ids (float64). It may take a minute."""
    ids, found = await service.clustering.run(request, lambda: find_map(service, features))
    data = found.astype("<f4").tobytes() + ids.astype("<f8").tobytes()
    return Response(data, media_type="application/octet-stream")


@map_router.get(
    "/colors", response_model=schemas.MapColors, responses=problems(404), summary="What the images are colored by"
)
async def colors(
    request: Request,
    service: Service,
    by: Annotated[Literal["folder", "label"], Query(description="By the folder or by the label.")] = "folder",
    features: FeaturesQuery = None,
) -> Response:
    return answer(await service.clustering.run(request, lambda: find_colors(service, by, features)))


def find_map(service: SearchService, features: str | None) -> tuple[Ids, Floats]:
    """Return ids (n,) and places (n, 2), computed now or kept since; raise 404 of an empty index."""
    used = service.features.get(features)
    if not len(used.index):
        raise HTTPException(404, "There are no pictures in the index yet.")
    key = _key(used)
    if used.layout is None or used.layout[0] != key:
        used.layout = key, *(_read(_file(service, key)) or _compute(service, used, key))
    return used.layout[1], used.layout[2]


def find_colors(service: SearchService, by: str, features: str | None) -> schemas.MapColors:
    """Return a number for each image of the map, and what the numbers mean."""
    ids, _ = find_map(service, features)
    if by == "label":
        notes = service.collection.notes.all()
        words = [notes.get(item, NOTHING).label for item in ids.tolist()]
    else:
        used = service.features.get(features)
        known = dict(zip(used.listing()[0], used.paths(), strict=True))
        words = [str(PurePosixPath(known.get(item, "")).parent).removeprefix(".") for item in ids.tolist()]
    names = sorted(set(words), key=natural_key)
    numbers = {name: number for number, name in enumerate(names)}
    return schemas.MapColors(names=names, colors=[numbers[word] for word in words])


def _key(features: FeatureSet) -> str:
    """Return what changes when the images do: ids come from paths, and a changed file has another size or time."""
    listed = features.index.list_items()
    content = np.stack([listed.ids, listed.bytes, listed.mtimes]).tobytes()
    text = f"{VERSION} {features.fingerprint} ".encode()
    return hashlib.sha256(text + content).hexdigest()[:40]


def _compute(service: SearchService, features: FeatureSet, key: str) -> tuple[Ids, Floats]:
    ids, found = lay_out(features.index)
    buffer = io.BytesIO()
    np.savez(buffer, ids=ids, places=found)
    with contextlib.suppress(OSError):
        write_atomic(_file(service, key), buffer.getvalue())
    return ids, found


def _read(file: Path) -> tuple[Ids, Floats] | None:
    try:
        with np.load(file) as kept:
            return kept["ids"], kept["places"]
    except (OSError, ValueError, KeyError):
        return None


def _file(service: SearchService, key: str) -> Path:
    return Path(service.config.cache_dir or default_cache_dir()) / "maps" / f"{key}.npz"
