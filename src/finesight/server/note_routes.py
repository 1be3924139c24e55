"""The routes for what people write about images: labels and tags, and what is made of a selection."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from finesight.server import note_schemas, schemas
from finesight.server.json_body import json_body, json_schema
from finesight.server.parameters import ItemFilter
from finesight.server.routes import Service, answer, problems
from finesight.server.zipped import stream_zip

note_router = APIRouter(prefix="/api", responses=problems())
WRITES = problems(408, 409, 413, 415)


@note_router.get("/folders", response_model=schemas.Folders, summary="The folders that the images are in")
async def folders(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.collection.folders))


@note_router.get("/camera", response_model=schemas.CameraFacts, summary="Which dates and cameras the images have")
async def camera(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.collection.camera.facts))


@note_router.get("/labels", response_model=note_schemas.Labels, summary="All labels and tags")
async def labels(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.collection.labels))


@note_router.post(
    "/labels",
    response_model=note_schemas.Changed,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.LabelChange),
    summary="Label and tag images",
)
async def change_labels(
    request: Request,
    service: Service,
    change: Annotated[note_schemas.LabelChange, Depends(json_body(note_schemas.LabelChange))],
) -> Response:
    """They are on the disk when this returns. 409 where nothing can be written."""
    return answer(await service.reading.run(request, lambda: service.collection.change_labels(change)))


@note_router.post(
    "/labels/undo",
    response_model=note_schemas.Changed,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.Undo),
    summary="Take back the last change of labels",
)
async def undo(
    request: Request, service: Service, undo: Annotated[note_schemas.Undo, Depends(json_body(note_schemas.Undo))]
) -> Response:
    return answer(await service.reading.run(request, lambda: service.collection.undo(undo.change)))


@note_router.get(
    "/labels/export",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}}}},
    summary="Labels and tags, as a file",
)
async def export(
    request: Request,
    service: Service,
    wanted: Annotated[ItemFilter, Query()],
    kind: Annotated[
        Literal["csv", "list"], Query(alias="format", description="list: what --data reads, beside the images.")
    ] = "csv",
) -> Response:
    text = await service.reading.run(request, lambda: service.collection.export(kind, wanted))
    headers = {"Content-Disposition": f'attachment; filename="{"labels" if kind == "csv" else "labeled"}.csv"'}
    return Response(text.encode("utf-8", "surrogateescape"), headers=headers, media_type="text/csv; charset=utf-8")


@note_router.post(
    "/items/list",
    response_model=schemas.Items,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.Chosen),
    summary=f"What up to {note_schemas.MOST_ZIPPED} images are called",
)
async def list_items(
    request: Request, service: Service, chosen: Annotated[note_schemas.Chosen, Depends(json_body(note_schemas.Chosen))]
) -> Response:
    """Images that are gone are left out."""
    return answer(await service.reading.run(request, lambda: service.collection.list_items(chosen.ids)))


@note_router.post(
    "/zip",
    response_class=StreamingResponse,
    responses={**WRITES, 200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}},
    openapi_extra=json_schema(note_schemas.Chosen),
    summary=f"Up to {note_schemas.MOST_ZIPPED} images in one ZIP file",
)
async def zipped(
    request: Request, service: Service, chosen: Annotated[note_schemas.Chosen, Depends(json_body(note_schemas.Chosen))]
) -> Response:
    """Drawn anew as JPEGs, like every picture that the server sends. Those that are gone are named in missing.txt."""
    headers = {"Content-Disposition": 'attachment; filename="finesight.zip"'}
    return StreamingResponse(stream_zip(request, service, chosen.ids), media_type="application/zip", headers=headers)


@note_router.get("/saved", response_model=note_schemas.Saved, summary="Saved views and pinned images")
async def saved(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.collection.saved))


@note_router.post(
    "/saved",
    response_model=note_schemas.Saved,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.SaveView),
    summary="Save or forget a view of the page",
)
async def save_view(
    request: Request,
    service: Service,
    view: Annotated[note_schemas.SaveView, Depends(json_body(note_schemas.SaveView))],
) -> Response:
    return answer(await service.reading.run(request, lambda: service.collection.save_view(view)))


@note_router.post(
    "/pins",
    response_model=note_schemas.Saved,
    responses=WRITES,
    openapi_extra=json_schema(note_schemas.Pins),
    summary="Keep the pinned images",
)
async def save_pins(
    request: Request, service: Service, pins: Annotated[note_schemas.Pins, Depends(json_body(note_schemas.Pins))]
) -> Response:
    return answer(await service.reading.run(request, lambda: service.collection.save_pins(pins)))


@note_router.post(
    "/parts",
    response_model=note_schemas.PartNames,
    responses=problems(404, 408, 409, 413, 415),
    openapi_extra=json_schema(note_schemas.PartName),
    summary="Name a part",
)
async def name_part(
    request: Request,
    service: Service,
    part: Annotated[note_schemas.PartName, Depends(json_body(note_schemas.PartName))],
) -> Response:
    """The name is in `projections` of /api/explain and /api/attention from then on."""
    return answer(await service.reading.run(request, lambda: service.collection.name_part(part)))
