"""The addresses below /api. Each takes its question apart, gives it to a lane, and sends what comes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from finesight.server import attention as seeing
from finesight.server import groups as grouping
from finesight.server import schemas
from finesight.server.images import LARGE, THUMB
from finesight.server.parameters import (
    AnyPath,
    ClusterOptions,
    ClusterPage,
    ExplainOptions,
    ItemPath,
    ItemsPage,
    SearchById,
    from_form,
    multipart_body,
)
from finesight.server.service import Service
from finesight.server.upload import read_upload

Responses = dict[int | str, dict[str, Any]]
WORDS = {
    400: "Not understood: a name the server does not answer to, or a form that cannot be read.",
    401: "A token is needed.",
    403: "Refused: sent from another site, or a file outside the folder of the index.",
    404: "Not there, or no longer.",
    408: "The upload took too long.",
    413: "Too large, in bytes or in pixels.",
    415: "Not a picture, or not sent as multipart/form-data.",
    422: "A value that is not allowed, or a damaged picture.",
    500: "A fault of the server, which its log explains.",
    503: "Busy: come again after the seconds that Retry-After says.",
}
ALWAYS = (400, 401, 403, 422, 500, 503)
FILES = (404, 413, 415)  # of a picture that is read again


def problems(*more: int) -> Responses:
    return {status: {"model": schemas.Problem, "description": WORDS[status]} for status in sorted({*ALWAYS, *more})}


def picture_response(*kinds: str) -> dict[str, Any]:
    return {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}}


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def answer(model: BaseModel) -> Response:
    """Written as it is: it was checked when it was made."""
    return Response(model.model_dump_json(), media_type="application/json")


router = APIRouter(prefix="/api", responses=problems())


@router.get("/health", response_model=schemas.Health, summary="How the server is, and how far its index")
async def health(request: Request) -> Response:
    service = service_of(request)
    return answer(await service.reading.run(request, service.health))


@router.post(
    "/search",
    response_model=schemas.SearchResult,
    responses=problems(404, 408, 413, 415),
    openapi_extra=multipart_body(),
    summary="Search by a picture that is sent",
)
async def search_upload(request: Request) -> Response:
    """The answer's `query.id` stands for the picture from then on, for a while."""
    service = service_of(request)
    with service.network.place(), service.uploads.account() as take:
        upload = await read_upload(request, service.limits, take)
        options = from_form(upload.fields)
        return answer(await service.network.turn(request, lambda: service.search_upload(upload, options)))


@router.get(
    "/search",
    response_model=schemas.SearchResult,
    responses=problems(*FILES),
    summary="Search by an image of the index, or by a picture sent before",
)
async def search(request: Request, options: Annotated[SearchById, Query()]) -> Response:
    """An image of the index is left out of its own hits."""
    service = service_of(request)
    lane = service.reading if options.box is None else service.network
    return answer(await lane.run(request, lambda: service.search(options.query, options)))


@router.get("/items", response_model=schemas.Items, summary="Images of the index, by path")
async def items(request: Request, page: Annotated[ItemsPage, Query()]) -> Response:
    service = service_of(request)
    return answer(await service.reading.run(request, lambda: service.items(page)))


@router.get(
    "/items/{item}", response_model=schemas.ItemFacts, responses=problems(404), summary="What is known of one image"
)
async def item(request: Request, item: ItemPath) -> Response:
    service = service_of(request)
    return answer(await service.reading.run(request, lambda: service.item(item)))


async def _picture(request: Request, name: str, side: int) -> Response:
    service = service_of(request)
    known = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"')

    def drawn() -> tuple[str, bytes | None]:
        return service.subjects.picture(service.subjects.find(name), side, known)

    tag, data = await service.drawing.run(request, drawn)
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if data is None or tag == known:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/jpeg", headers=headers)


PICTURE: Responses = {
    **problems(*FILES),
    200: picture_response("image/jpeg"),
    304: {"description": "As in If-None-Match."},
}


@router.get(
    "/items/{name}/thumb", response_class=Response, responses=PICTURE, summary=f"A JPEG of at most {THUMB} pixels"
)
async def thumb(request: Request, name: AnyPath) -> Response:
    return await _picture(request, name, THUMB)


@router.get(
    "/items/{name}/image", response_class=Response, responses=PICTURE, summary=f"A JPEG of at most {LARGE} pixels"
)
async def image(request: Request, name: AnyPath) -> Response:
    """Drawn anew: what a camera hides in its files is not in it."""
    return await _picture(request, name, LARGE)


@router.get(
    "/attention/{name}",
    response_model=schemas.Attention,
    responses={**problems(*FILES), 200: picture_response("image/png")},
    summary="Where the network looks",
)
async def attention(
    request: Request,
    name: AnyPath,
    kind: Annotated[Literal["json", "png"], Query(alias="format", description="png: laid over the picture.")] = "json",
) -> Response:
    service = service_of(request)
    if kind == "png":
        data = await service.drawing.run(request, lambda: seeing.attention_picture(service, name))
        return Response(data, media_type="image/png", headers={"Cache-Control": "private, no-cache"})
    return answer(await service.network.run(request, lambda: seeing.attention(service, name)))


@router.get(
    "/explain",
    response_model=schemas.Explanation,
    responses=problems(*FILES),
    summary="Which cells and projections made two pictures alike",
)
async def explain(request: Request, options: Annotated[ExplainOptions, Query()]) -> Response:
    """Exact: the cells of either map sum to the score."""
    service = service_of(request)
    return answer(await service.network.run(request, lambda: seeing.explain(service, options)))


@router.get("/clusters", response_model=schemas.Clusters, summary="The images of the index in groups of like ones")
async def clusters(request: Request, options: Annotated[ClusterOptions, Query()]) -> Response:
    """The largest group first. It may take a while; asked again, it does not."""
    service = service_of(request)
    return answer(await service.grouping.run(request, lambda: grouping.overview(service, options)))


@router.get(
    "/clusters/{cluster}", response_model=schemas.ClusterItems, responses=problems(404), summary="One of those groups"
)
async def cluster(
    request: Request,
    cluster: Annotated[int, Path(ge=0, le=2**31 - 1, description="Its `id`, with the same method and count.")],
    page: Annotated[ClusterPage, Query()],
) -> Response:
    """Nearest to the center first."""
    service = service_of(request)
    return answer(await service.grouping.run(request, lambda: grouping.one_cluster(service, cluster, page)))
