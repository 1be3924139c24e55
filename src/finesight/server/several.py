"""Several indexes on one server: what there is to choose from. Each has its page and its API below /i/NAME/."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from finesight.server import schemas
from finesight.server.config import ServerConfig
from finesight.server.routes import answer, problems
from finesight.server.service import SearchService

SAMPLES = 4  # images that stand for an index
COMMON = ("index", "frozen")  # names of folders that say nothing
several_router = APIRouter(prefix="/api", responses=problems())


class SeveralServices:
    """Services by the names in their addresses."""

    def __init__(self, services: Mapping[str, SearchService], config: ServerConfig) -> None:
        self.services, self.config = dict(services), config

    def close(self, seconds: float) -> bool:
        """Stop all work and return whether what was under way ended within that time."""
        return all([service.close(seconds) for service in self.services.values()])

    def describe(self) -> schemas.Indexes:
        """Return what there is."""
        return schemas.Indexes(indexes=[self._describe(name, one) for name, one in self.services.items()])

    @staticmethod
    def _describe(name: str, service: SearchService) -> schemas.IndexChoice:
        ids, _ = service.features.get().listing()
        step = max(1, len(ids) // SAMPLES)
        return schemas.IndexChoice(
            name=name, items=len(ids), samples=[str(one) for one in ids[step // 2 :: step][:SAMPLES]]
        )


def short_names(places: Sequence[str]) -> list[str]:
    """Return a short name for each index that an address can have: the last part of its place that says something."""
    names: list[str] = []
    for place in places:
        parts = [part for part in re.split(r"[/\\]+", place.rstrip("/\\")) if part and part not in COMMON]
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", parts[-1] if parts else "index").strip("-") or "index"
        name, number = stem, 1
        while name in names:
            number += 1
            name = f"{stem}-{number}"
        names.append(name)
    return names


async def _several(request: Request) -> SeveralServices:
    several: SeveralServices = request.app.state.several
    return several


@several_router.get("/indexes", response_model=schemas.Indexes, summary="The indexes of this server")
async def indexes(request: Request, several: Annotated[SeveralServices, Depends(_several)]) -> Response:
    """The page and the API of each are below /i/NAME/."""
    first = next(iter(several.services.values()))
    return answer(await first.reading.run(request, several.describe))
