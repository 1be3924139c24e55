"""The web application: the API, its documentation, and the search page."""

from __future__ import annotations

import base64
import hashlib
import logging
import mimetypes
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from finesight.errors import FineSightError
from finesight.server.config import ServerConfig
from finesight.server.copies import copies_router
from finesight.server.group_routes import group_router
from finesight.server.guard import CONTENT_POLICY, Guard
from finesight.server.judge_desk import JudgeRoom
from finesight.server.judge_routes import judge_router
from finesight.server.map_route import map_router
from finesight.server.metrics import HEALTHZ, METRICS, CountRequests, answer_healthz, answer_metrics
from finesight.server.note_routes import note_router
from finesight.server.parameters import describe_error
from finesight.server.routes import router
from finesight.server.service import SearchService
from finesight.server.several import SeveralServices, several_router
from finesight.server.words_route import words_router
from finesight.version import __version__

PAGE = Path(__file__).resolve().parent / "page"
JUDGE_PAGE = "judge.html"
PLAIN = {404: "There is nothing at this address.", 405: "This address does not take that method."}
DESCRIPTION = (
    "Find the images of a folder that look most like a picture, and see why. "
    "Ids are strings: digits for images of the index, q… for pictures that were sent."
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ROUTERS = (router, note_router, group_router, copies_router, map_router, words_router, judge_router)  # of one index
log = logging.getLogger("finesight.server")


def create_app(service: SearchService, *, guarded: bool = True) -> FastAPI:
    """Return the app of ``service``, behind the guard unless another app puts it there."""
    app = _create_app(service.config if guarded else None, "index.html", *ROUTERS)
    app.state.service, app.state.judging = service, service.judging
    app.router.routes.insert(0, Route(METRICS, answer_metrics))
    routes = [route for one in (*ROUTERS, app.router) for route in one.routes]
    app.add_middleware(CountRequests, metrics=service.metrics, routes=routes)  # the last one is the outermost
    return app


def create_judge_app(room: JudgeRoom) -> FastAPI:
    """Return an app that only judges, behind the guard."""
    app = _create_app(room.config, JUDGE_PAGE, judge_router)
    app.state.judging = room
    return app


def create_several_app(several: SeveralServices) -> FastAPI:
    """Return an app that offers a choice of indexes at / and has each of them below /i/NAME/, behind the guard."""
    app = _create_app(several.config, "indexes.html", several_router)
    app.state.several = several
    for name, service in several.services.items():
        inner = create_app(service, guarded=False)
        app.router.routes[:0] = [Mount(f"/i/{name}", inner), Route(f"/i/{name}", _add_slash(f"/i/{name}/"))]
    return app


def _create_app(config: ServerConfig | None, first_page: str, *routers: APIRouter) -> FastAPI:
    app = FastAPI(title="FineSight", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    for one in routers:
        app.include_router(one)
    app.add_exception_handler(StarletteHTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(FineSightError, _answer_index_error)
    if config is not None:
        app.add_middleware(Guard, config=config)
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)  # the table of the system may say anything
    swagger, page = StaticFiles(directory=str(files("fastapi_offline") / "static")), StaticFiles(directory=PAGE)
    app.router.routes += [
        Route("/docs", _documentation),
        Route("/docs/{name}", _serve_files(swagger)),
        Route(HEALTHZ, answer_healthz),
        Route("/", _serve_files(page, first_page)),
        Route("/judge", _serve_files(page, JUDGE_PAGE)),
        Route("/{name:path}", _serve_files(page)),  # last: every other address that is no file of the page is 404
    ]
    return app


def _add_slash(address: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return RedirectResponse(address)

    return endpoint


async def _documentation(request: Request) -> Response:
    """Return Swagger UI, whose files come from this server. Its inline script is allowed by the script's hash."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="FineSight API",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="icon.svg",
        swagger_ui_parameters={"validatorUrl": None},  # no request to validator.swagger.io
    )
    script = bytes(page.body).partition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = f"{CONTENT_POLICY}; script-src 'self' 'sha256-{digest}'"
    return HTMLResponse(page.body, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


def _serve_files(folder: StaticFiles, only: str = "") -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        response = await folder.get_response(only or request.path_params["name"], request.scope)
        response.headers.setdefault("Cache-Control", "no-cache")  # the browser asks again and gets a 304
        return response

    return endpoint


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    detail = error.detail
    if error.status_code in PLAIN and detail == HTTPStatus(error.status_code).phrase:
        detail = PLAIN[error.status_code]
    return JSONResponse({"detail": detail}, error.status_code, headers=error.headers)


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": describe_error(error.errors())}, 422)


async def _answer_index_error(request: Request, error: Exception) -> Response:
    """Answer that the index cannot be read. The error names folders, so it goes to the log alone."""
    log.error("%s %s: %s", request.method, request.url.path, error)
    busy = HTTPException(503, "The index cannot be read now; the server's log says why.", {"Retry-After": "5"})
    return await _answer_http_error(request, busy)
