"""Read a small JSON body, counting bytes while it arrives, and check it against a model."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from finesight.server.parameters import describe_error
from finesight.server.work_queue import CLIENT_LEFT

M = TypeVar("M", bound=BaseModel)
MOST_BYTES = 2 * 2**20


def json_body(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a dependency of a route that reads a ``model``, or raises 408, 413, 415, 422 or 503."""

    async def read(request: Request) -> M:
        service = request.app.state.service
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "Send the request as application/json.")
        body = bytearray()
        try:
            async with service.arrivals.receive(service.config.upload_seconds) as arrival:
                with service.uploads.account() as take:
                    async for chunk in request.stream():
                        arrival.received += len(chunk)
                        if arrival.received > MOST_BYTES:
                            raise HTTPException(413, f"The request is larger than {MOST_BYTES / 2**20:.3g} MB.")
                        take(len(chunk))
                        body += chunk
        except TimeoutError:
            raise HTTPException(408, "The request took too long to arrive.") from None
        except ClientDisconnect:
            raise HTTPException(CLIENT_LEFT, "The client has left.") from None
        try:
            return model.model_validate(json.loads(bytes(body), parse_float=_number))
        except (RecursionError, ValueError) as error:
            if not isinstance(error, ValidationError):
                raise HTTPException(422, "request: This is not JSON.") from None
            raise HTTPException(422, describe_error(error.errors())) from None

    return read


def _number(text: str) -> float:
    """Return a number of JSON, which knows no integers of its own: 3.0 is one."""
    value = float(text)
    return int(value) if value.is_integer() else value


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of that body, which FastAPI cannot make because it does not read it."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
