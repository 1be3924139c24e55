"""Decide who may send a request, before anything else of it is read.

Every website that the user visits can send requests to a server on localhost. An attack by DNS rebinding is recognized
by its Host header, a form that another site sends by its Origin header.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finesight.server.config import ServerConfig, is_address, is_loopback
from finesight.server.metrics import HEALTHZ, METRICS
from finesight.server.sign_in import NEEDED, WAIT, WRONG, WrongTokens, refusal_words, sign_in_page

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


TOKEN_NEEDED = "A token is needed: send 'Authorization: Bearer TOKEN', or open the page as /?token=TOKEN."


def error_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as JSON."""
    return JSONResponse({"detail": detail}, status, headers=headers)


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port: "[::1]:8000" -> "::1"."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_api(path: str) -> bool:
    """Return whether a path is one of the API, also of one index among several: /i/birds/api/health."""
    if path.startswith("/i/"):
        path = "/" + path.removeprefix("/i/").partition("/")[2]
    return path.startswith("/api")


def _equal(given: str, expected: str) -> bool:
    """Compare secrets in a time that tells nothing about them."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


class Guard:
    """Refuse forbidden requests and too many at a time; put the safety headers on every answer (ASGI middleware)."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app, self._token, self._limit, self._running = app, config.token or "", config.requests, 0
        self._hosts = LOCAL_HOSTS | {name.strip("[]").lower() for name in (config.host, *config.allow_hosts)}
        self._any_address = not is_loopback(config.host)  # DNS cannot make an address point elsewhere
        # Drawn at random, so that nobody can try out tokens by cookies. Servers on other ports have other names.
        self._cookie_name, self._cookie_value = f"finesight-{secrets.token_hex(4)}", secrets.token_urlsafe(32)
        self._wrong = WrongTokens()
        numbers = rf"|(/i/[\w-]+)?{METRICS}" if config.metrics_open else ""  # of several indexes each has its own
        self._open_paths = re.compile(HEALTHZ + numbers)

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
        refusal: Response | None = self._check_origin(request) or self._check_token(request)
        is_full = self._running >= self._limit and scope["path"] != HEALTHZ  # being busy is no illness
        if refusal is None and is_full:
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
            foreign = foreign and is_api(request.scope["path"])  # other sites may link to the page
        else:
            origin = request.headers.get("origin")
            same = origin is None or origin.lower().partition("://")[2] == hosts[0].strip().lower()
            foreign = foreign or not same
        return error_response(403, "Requests from other sites are refused.") if foreign else None

    def _check_token(self, request: Request) -> Response | None:
        """Return 401 without the token, 429 after many wrong ones; a browser gets a form that asks for it.

        A page that is opened with ?token= is sent on to the same address without it.
        """
        if (
            not self._token
            or self._open_paths.fullmatch(request.scope["path"])
            or _equal(request.cookies.get(self._cookie_name, ""), self._cookie_value)
        ):
            return None
        path, query = (
            "/" + request.scope["path"].lstrip("/\\"),
            request.query_params.multi_items(),
        )  # never another host
        rest = [pair for pair in query if pair[0] != "token"]
        is_page = request.method == "GET" and not is_api(path)
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if kind.lower() == "bearer" else []
        given += [value for key, value in query if key == "token" and is_page]
        given = [token for token in given if token]
        client = request.client.host if request.client else ""
        if given and (seconds := self._wrong.wait(client)):
            return self._refuse(request, 429, WAIT, path, rest, {"Retry-After": str(seconds)})
        if not any([_equal(token, self._token) for token in given]):
            if given:
                self._wrong.add(client)
            why = WRONG if given else NEEDED
            return self._refuse(request, 401, why, path, rest, {"WWW-Authenticate": "Bearer"})
        self._wrong.forget(client)
        if bearer and _equal(bearer.strip(), self._token):
            return None
        location = quote(path) + (f"?{urlencode(rest)}" if rest else "")
        cookie = f"{self._cookie_name}={self._cookie_value}; Path=/; HttpOnly; SameSite=Strict"
        return error_response(303, "Come in.", {"Location": location, "Set-Cookie": cookie})

    def _refuse(
        self,
        request: Request,
        status: int,
        why: str,
        path: str,
        query: list[tuple[str, str]],
        headers: dict[str, str],
    ) -> Response:
        seconds = int(headers.get("Retry-After", 0))
        is_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if is_browser and not is_api(path):
            languages = request.headers.get("accept-language", "")
            return sign_in_page(status, why, seconds, quote(path), query, headers, languages)
        words = {NEEDED: TOKEN_NEEDED, WRONG: f"{refusal_words(WRONG)} {TOKEN_NEEDED}"}
        return error_response(status, words.get(why) or refusal_words(why, seconds), headers)
