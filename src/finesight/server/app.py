"""The web application: the API, its documentation, and the page."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from finesight.errors import FineSightError
from finesight.server.guard import Access, Guard
from finesight.server.parameters import words
from finesight.server.routes import router
from finesight.server.service import Service
from finesight.version import __version__

PAGE = Path(__file__).resolve().parent / "page"
DOCS = Path(__file__).resolve().parent / "docs"
PLAIN = {404: "There is nothing at this address.", 405: "This address does not take that method."}
ABOUT = (
    "Find the images of a folder that look most like a picture, and see why. "
    "Ids are strings: digits for images of the index, q… for pictures that were sent."
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
log = logging.getLogger("finesight.server")


def create_app(service: Service, access: Access | None = None) -> FastAPI:
    """Everything behind the guard. The page's files come last: what is none of them is 404."""
    app = FastAPI(title="FineSight", version=__version__, description=ABOUT, docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(router)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misasked)
    app.add_exception_handler(FineSightError, _unreadable)
    app.add_middleware(Guard, access=access or Access(), requests=service.limits.requests)
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)  # the system's own table may say anything
    docs, page = StaticFiles(directory=DOCS), StaticFiles(directory=PAGE)
    app.router.routes += [
        Route("/docs", _files(docs, "docs.html")),
        Route("/docs/{name}", _files(docs)),
        Route("/", _files(page, "index.html")),
        Route("/{name:path}", _files(page)),
    ]
    return app


def _files(folder: StaticFiles, only: str = "") -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        response = await folder.get_response(only or request.path_params["name"], request.scope)
        response.headers.setdefault("Cache-Control", "no-cache")  # asked for again, answered by 304
        return response

    return endpoint


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    detail = error.detail
    if error.status_code in PLAIN and detail == HTTPStatus(error.status_code).phrase:
        detail = PLAIN[error.status_code]
    return JSONResponse({"detail": detail}, error.status_code, headers=error.headers)


async def _misasked(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": words(error.errors())}, 422)


async def _unreadable(request: Request, error: Exception) -> Response:
    """Of the index, while it is used: it names folders, which are for the log."""
    log.error("%s %s: %s", request.method, request.url.path, error)
    busy = HTTPException(503, "The index cannot be read now; the server's log says why.", {"Retry-After": "5"})
    return await _refused(request, busy)
