"""The routes below /api. Each passes its parameters to the service, in the work queue that the work belongs to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from finesight.server import explanations, schemas
from finesight.server.images import IMAGE_SIDE, THUMBNAIL_SIDE
from finesight.server.parameters import (
    FEATURES_HELP,
    AnyIdPath,
    ClusterOptions,
    ClusterPage,
    ExplainOptions,
    ItemIdPath,
    ItemsPage,
    SearchById,
    multipart_body,
    search_options,
)
from finesight.server.service import SearchService
from finesight.server.upload import read_upload

Responses = dict[int | str, dict[str, Any]]
STATUS_WORDS = {
    400: "Not understood: a name the server does not answer to, or a form that cannot be read.",
    401: "A token is needed.",
    403: "Refused: sent from another site, or a file outside the folder of the index.",
    404: "Not there, or no longer.",
    408: "The upload took too long.",
    409: "Not possible now.",
    413: "Too large, in bytes or in pixels.",
    415: "Not a picture, or not sent as multipart/form-data.",
    422: "A value that is not allowed, or a damaged picture.",
    429: "Too many wrong tokens.",
    500: "A fault of the server, which its log explains.",
    503: "Busy: come again after the seconds that Retry-After says.",
}
ANY_ROUTE = (400, 401, 403, 422, 429, 500, 503)
READS_FILE = (404, 413, 415)  # of routes that read an image again


def problems(*more: int) -> Responses:
    """Describe the errors that every route may return, and ``more``."""
    return {
        status: {"model": schemas.Problem, "description": STATUS_WORDS[status]}
        for status in sorted({*ANY_ROUTE, *more})
    }


def image_response(kind: str) -> dict[str, Any]:
    """Describe an answer that is an image."""
    return {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}


async def _service(request: Request) -> SearchService:
    service: SearchService = request.app.state.service
    return service


def answer(model: BaseModel) -> Response:
    """Write a model as JSON without checking it again: it was checked when it was made."""
    return Response(model.model_dump_json(), media_type="application/json")


Service = Annotated[SearchService, Depends(_service)]
FeaturesQuery = Annotated[schemas.FeaturesName | None, Query(description=FEATURES_HELP)]
router = APIRouter(prefix="/api", responses=problems())


@router.get("/health", response_model=schemas.Health, summary="How the server is, and how far its index")
async def health(request: Request, service: Service) -> Response:
    return answer(await service.reading.run(request, service.health))


@router.get(
    "/training",
    response_model=schemas.Training,
    responses=problems(404),
    summary="How far the training in the background is",
)
async def training(request: Request, service: Service) -> Response:
    """Only `finesight up` trains: another server answers 404."""
    return answer(await service.reading.run(request, lambda: service.require_upkeep().training()))


@router.post(
    "/training",
    response_model=schemas.Training,
    responses=problems(404, 409),
    summary="Continue the training, with the images that are new",
)
async def continue_training(request: Request, service: Service) -> Response:
    """409 where it runs already, or cannot go on."""
    return answer(await service.reading.run(request, lambda: service.require_upkeep().request_training()))


@router.post(
    "/search",
    response_model=schemas.SearchResult,
    responses=problems(404, 408, 413, 415),
    openapi_extra=multipart_body(),
    summary="Search by a picture that is sent",
)
async def search_upload(request: Request, service: Service) -> Response:
    """The answer's `query.id` stands for the picture from then on, for a while."""
    service.network.check()
    with service.uploads.account() as take:
        upload = await read_upload(request, service.config, service.arrivals, take)
        options = search_options(upload.fields)
        return answer(await service.network.run(request, lambda: service.search_upload(upload, options)))


@router.get(
    "/search",
    response_model=schemas.SearchResult,
    responses=problems(*READS_FILE),
    summary="Search by an image of the index, or by a picture sent before",
)
async def search(request: Request, service: Service, options: Annotated[SearchById, Query()]) -> Response:
    """An image of the index is left out of its own hits."""
    usual = service.reading if options.box is None else service.network
    queue = service.queue_for(options.query, options.features, usual)
    return answer(await queue.run(request, lambda: service.search(options.query, options)))


@router.get("/items", response_model=schemas.Items, summary="Images of the index, by path")
async def items(request: Request, service: Service, page: Annotated[ItemsPage, Query()]) -> Response:
    return answer(await service.reading.run(request, lambda: service.items(page)))


@router.get(
    "/items/{item}", response_model=schemas.ItemFacts, responses=problems(404), summary="What is known of one image"
)
async def item(request: Request, service: Service, item: ItemIdPath, features: FeaturesQuery = None) -> Response:
    return answer(await service.reading.run(request, lambda: service.item(item, features)))


async def _draw(request: Request, service: Service, name: str, side: int) -> Response:
    known = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"')
    tag, data = await service.drawing.run(request, lambda: service.draw(name, side, known))
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if data is None or tag == known:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/jpeg", headers=headers)


IMAGE_RESPONSES: Responses = {
    **problems(*READS_FILE),
    200: image_response("image/jpeg"),
    304: {"description": "As in If-None-Match."},
}


@router.get(
    "/items/{name}/thumb",
    response_class=Response,
    responses=IMAGE_RESPONSES,
    summary=f"A JPEG of at most {THUMBNAIL_SIDE} pixels",
)
async def thumb(request: Request, service: Service, name: AnyIdPath) -> Response:
    return await _draw(request, service, name, THUMBNAIL_SIDE)


@router.get(
    "/items/{name}/image",
    response_class=Response,
    responses=IMAGE_RESPONSES,
    summary=f"A JPEG of at most {IMAGE_SIDE} pixels",
)
async def image(request: Request, service: Service, name: AnyIdPath) -> Response:
    """Drawn anew: what a camera hides in its files is not in it."""
    return await _draw(request, service, name, IMAGE_SIDE)


@router.get(
    "/attention/{name}",
    response_model=schemas.Attention,
    responses={**problems(*READS_FILE), 200: image_response("image/png")},
    summary="Where the network looks",
)
async def attention(
    request: Request,
    service: Service,
    name: AnyIdPath,
    kind: Annotated[Literal["json", "png"], Query(alias="format", description="png: laid over the picture.")] = "json",
    features: FeaturesQuery = None,
) -> Response:
    if kind == "png":
        queue = service.queue_for(name, features, service.drawing)
        data = await queue.run(request, lambda: explanations.attention_png(service, name, features))
        return Response(data, media_type="image/png", headers={"Cache-Control": "private, no-cache"})
    return answer(await service.network.run(request, lambda: explanations.attention(service, name, features)))


@router.get(
    "/explain",
    response_model=schemas.ExplanationResponse,
    responses=problems(*READS_FILE),
    summary="Which cells and projections made two pictures alike",
)
async def explain(request: Request, service: Service, options: Annotated[ExplainOptions, Query()]) -> Response:
    """Exact: the cells of either map sum to the score."""
    return answer(await service.network.run(request, lambda: explanations.explain(service, options)))


@router.get(
    "/clusters",
    response_model=schemas.ClustersResponse,
    responses=problems(404),
    summary="The images of the index in groups of like ones",
)
async def clusters(request: Request, service: Service, options: Annotated[ClusterOptions, Query()]) -> Response:
    """The largest group first. It may take a while; asked again, it does not."""
    return answer(await service.clustering.run(request, lambda: service.clusters(options)))


@router.get(
    "/clusters/{cluster}", response_model=schemas.ClusterItems, responses=problems(404), summary="One of those groups"
)
async def cluster(
    request: Request,
    service: Service,
    cluster: Annotated[int, Path(ge=0, le=2**31 - 1, description="Its `id`, with the same method and count.")],
    page: Annotated[ClusterPage, Query()],
) -> Response:
    """Nearest to the center first."""
    return answer(await service.clustering.run(request, lambda: service.cluster_items(cluster, page)))
