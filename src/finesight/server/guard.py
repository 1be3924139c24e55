"""Decide who may send a request, before anything else of it is read.

Every website that the user visits can send requests to a server on localhost. An attack by DNS rebinding is recognized
by its Host header, a form that another site sends by its Origin header.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finesight.server.config import ServerConfig, is_address, is_loopback

log = logging.getLogger("finesight.server")
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'"
)
SAFETY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",  # no other site may show our images
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def error_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as JSON."""
    return JSONResponse({"detail": detail}, status, headers=headers)


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port: "[::1]:8000" -> "::1"."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _equal(given: str, expected: str) -> bool:
    """Compare secrets in a time that tells nothing about them."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


class Guard:
    """Refuse forbidden requests and too many at a time; put the safety headers on every answer (ASGI middleware)."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app, self._token, self._limit, self._running = app, config.token or "", config.requests, 0
        self._hosts = LOCAL_HOSTS | {name.strip("[]").lower() for name in (config.host, *config.allow_hosts)}
        self._any_address = not is_loopback(config.host)  # DNS cannot make an address point elsewhere
        # The cookie is derived from the token but does not reveal it. Servers on other ports have other names.
        digest = hmac.new(self._token.encode(), b"finesight page", hashlib.sha256).hexdigest()
        self._cookie_name, self._cookie_value = f"finesight-{digest[:8]}", digest[8:]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refusal = self._check_origin(request) or self._check_token(request)
        if refusal is None and self._running >= self._limit:
            detail = "The server is busy: too many requests at a time. Try again in a moment."
            refusal = error_response(503, detail, {"Retry-After": "1"})
        if refusal is not None:
            await refusal(scope, receive, send_safely)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the web server sends the head alone
        self._running += 1
        try:
            await self._app(scope, receive, send_safely)
        except asyncio.CancelledError:  # Ctrl-C after the grace period is no failure, so it leaves no trace in the log
            if not started:
                stopping = error_response(503, "The server is stopping.", {"Connection": "close"})
                await stopping(scope, receive, send_safely)
        except Exception:  # in full to the log; the client gets a sentence
            log.exception("%s %s failed.", scope["method"], scope["path"])
            if started:
                raise
            failed = error_response(500, "Something went wrong in the server; its log says what.")
            await failed(scope, receive, send_safely)
        finally:
            self._running -= 1

    def _check_origin(self, request: Request) -> JSONResponse | None:
        """Return 400 for a host name that is not ours, 403 for a request that another site caused."""
        hosts = request.headers.getlist("host")
        name = host_name(hosts[0]) if hosts else ""
        known = name in self._hosts or (self._any_address and is_address(name))
        if len(hosts) != 1 or not known:
            detail = "The server does not answer to that name: start it with --allow-host NAME to allow it."
            return error_response(400, detail)
        foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if request.method in READ_METHODS:
            foreign = foreign and request.scope["path"].startswith("/api")  # other sites may link to the page
        else:
            origin = request.headers.get("origin")
            same = origin is None or origin.lower().partition("://")[2] == hosts[0].strip().lower()
            foreign = foreign or not same
        return error_response(403, "Requests from other sites are refused.") if foreign else None

    def _check_token(self, request: Request) -> JSONResponse | None:
        """Return 401 without the token; send a page opened with ?token= on to the same address without it."""
        if not self._token:
            return None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self._token):
            return None
        if _equal(request.cookies.get(self._cookie_name, ""), self._cookie_value):
            return None
        path, query = request.scope["path"], request.query_params.multi_items()
        is_page = request.method == "GET" and not path.startswith("/api")
        if is_page and any(key == "token" and _equal(value, self._token) for key, value in query):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            location = quote("/" + path.lstrip("/\\")) + (f"?{rest}" if rest else "")  # never another host
            cookie = f"{self._cookie_name}={self._cookie_value}; Path=/; HttpOnly; SameSite=Strict"
            return error_response(303, "Come in.", {"Location": location, "Set-Cookie": cookie})
        detail = "A token is needed: send 'Authorization: Bearer TOKEN', or open the page as /?token=TOKEN."
        return error_response(401, detail, {"WWW-Authenticate": "Bearer"})
