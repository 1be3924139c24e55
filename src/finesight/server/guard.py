"""Who may ask: before anything of a request is looked at.

A server on localhost is reached by every page the user's browser shows. A name that points at 127.0.0.1 for the
occasion (DNS rebinding) is found out by the Host header, a form sent from another site by its Origin.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("finesight.server")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'"
)
ALWAYS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",  # no other site may show our pictures
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """Names the server answers to, and the word it wants to hear."""

    hosts: frozenset[str] = LOCAL
    any_address: bool = False  # numbers in place of a name: they cannot be made to point elsewhere
    token: str | None = field(default=None, repr=False)

    @classmethod
    def bound(cls, host: str, more: Iterable[str] = (), token: str | None = None) -> Access:
        """For a server that listens at ``host``."""
        names = {name.strip("[]").lower() for name in (host, *more)}
        return cls(LOCAL | names, not is_loopback(host), token or None)

    def answers_to(self, host_header: str) -> bool:
        name = host_name(host_header)
        return name in self.hosts or (self.any_address and _is_address(name))

    def accepts(self, given: str) -> bool:
        return self.token is not None and _same(given, self.token)

    @property
    def cookie(self) -> tuple[str, str]:
        """Name and value: of the token, yet not the token. Servers on other ports of this host have other names."""
        digest = hmac.new((self.token or "").encode(), b"finesight page", hashlib.sha256).hexdigest()
        return f"finesight-{digest[:8]}", digest[8:]


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    return _is_address(host.strip("[]")) and ipaddress.ip_address(host.strip("[]")).is_loopback


def host_name(header: str) -> str:
    """Without the port: "[::1]:8000" -> "::1"."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


class Guard:
    """ASGI middleware. Refuses what may not ask, and too many at a time; puts the safety headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access, requests: int) -> None:
        self._app, self._access, self._most, self._inside = app, access, requests, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], scope["path"], headers) or self._stranger(scope, headers)
        if refusal is not None:
            await _answer(safely, *refusal)
            return
        if self._inside >= self._most:
            words = "The server is busy: too many requests at a time. Try again in a moment."
            await _answer(safely, 503, words, {"retry-after": "1"})
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # of which the web server sends the head alone
        self._inside += 1
        try:
            await self._answered(scope, receive, safely)
        finally:
            self._inside -= 1

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever goes wrong inside is for the log: the client gets a sentence."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:  # by Ctrl-C, when it waited long enough: no fault, so no trace in the log
            if not begun:
                await _answer(send, 503, "The server is stopping.", {"connection": "close"})
        except Exception:
            log.exception("%s %s failed.", scope["method"], scope["path"])
            if begun:
                raise
            await _answer(send, 500, "Something went wrong in the server; its log says what.", {})

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.answers_to(hosts[0]):
            return 400, "The server does not answer to that name: start it with --allow-host NAME to allow it.", {}
        elsewhere = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if method in SAFE:
            elsewhere = elsewhere and path.startswith("/api")  # a link to the page may be anywhere
        else:
            origin = headers.get("origin")
            same = origin is None or origin.lower().partition("://")[2] == hosts[0].strip().lower()
            elsewhere = elsewhere or not same
        return (403, "Requests from other sites are refused.", {}) if elsewhere else None

    def _stranger(self, scope: Scope, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        """401 without the token; a page opened with ?token= is sent on to the same address without it."""
        access = self._access
        if access.token is None:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and access.accepts(given.strip()):
            return None
        name, value = access.cookie
        if _same(_cookie(headers, name), value):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        is_page = scope["method"] == "GET" and not scope["path"].startswith("/api")
        if is_page and any(key == "token" and access.accepts(word) for key, word in query):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            where = quote("/" + scope["path"].lstrip("/\\"))  # never another host
            cookie = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"
            return 303, "Come in.", {"location": where + (f"?{rest}" if rest else ""), "set-cookie": cookie}
        words = "A token is needed: send 'Authorization: Bearer TOKEN', or open the page as /?token=TOKEN."
        return 401, words, {"www-authenticate": "Bearer"}


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def _answer(send: Send, status: int, words: str, headers: dict[str, str]) -> None:
    body = json.dumps({"detail": words}).encode()
    pairs = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
