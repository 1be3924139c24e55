"""The routes below /api/groups: groups of one's own, which begin as clusters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from finesight.server import note_schemas
from finesight.server.json_body import json_body, json_schema
from finesight.server.parameters import Page
from finesight.server.routes import Service, answer, problems

group_router = APIRouter(prefix="/api/groups", responses=problems())
WRITES = problems(404, 408, 409, 413, 415)


@group_router.get("", response_model=note_schemas.Groups, summary="Groups of one's own")
async def groups(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.groups.state))


@group_router.post(
    "",
    response_model=note_schemas.Groups,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.GroupChange),
    summary="Name, merge, split or fill groups",
)
async def change(
    request: Request,
    service: Service,
    change: Annotated[note_schemas.GroupChange, Depends(json_body(note_schemas.GroupChange))],
) -> Response:
    """409 if the groups were changed meanwhile."""
    return answer(await service.clustering.run(request, lambda: service.groups.change(change)))


@group_router.post(
    "/start",
    response_model=note_schemas.Groups,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.GroupStart),
    summary="Begin with clusters",
)
async def start(
    request: Request,
    service: Service,
    start: Annotated[note_schemas.GroupStart, Depends(json_body(note_schemas.GroupStart))],
) -> Response:
    return answer(await service.clustering.run(request, lambda: service.groups.start(start)))


@group_router.post(
    "/apply",
    response_model=note_schemas.Changed,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.GroupApply),
    summary="Give the images of groups the names of these as labels",
)
async def apply(
    request: Request,
    service: Service,
    apply: Annotated[note_schemas.GroupApply, Depends(json_body(note_schemas.GroupApply))],
) -> Response:
    """One change, which /api/labels/undo takes back."""
    return answer(await service.reading.run(request, lambda: service.groups.apply(apply)))


@group_router.get(
    "/{group}", response_model=note_schemas.GroupItems, responses=problems(404), summary="The images of one group"
)
async def group(
    request: Request,
    service: Service,
    group: Annotated[int, Path(ge=0, le=2**31, description="Its `id`.")],
    page: Annotated[Page, Query()],
) -> Response:
    return answer(await service.reading.run(request, lambda: service.groups.items(group, page)))
