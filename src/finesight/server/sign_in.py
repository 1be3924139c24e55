"""Wrong tokens: few are taken from one client at a time. And the form in which a browser asks for the token."""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.responses import HTMLResponse

NEEDED, WRONG, WAIT = "needed", "wrong", "wait"  # why the form is shown
FREE_TRIES = 10  # wrong tokens that cost no time
LONGEST_WAIT = 60.0  # seconds, after many more
FORGIVEN = 600.0  # seconds without a try
CLIENTS = 4096  # that are remembered
NETWORK_BITS = 64  # of an IPv6 address: one client has all that share them

_STYLE = (  # the colors of the search page
    ":root{color-scheme:light dark;--accent:#0b6b6b;--on-accent:#fff}"
    "@media(prefers-color-scheme:dark){:root{--accent:#62cbc2;--on-accent:#08211f}}"
    "body{font:16px/1.5 system-ui,sans-serif;display:grid;place-content:center;min-height:90vh;margin:0 1rem}"
    "form,label{display:flex;flex-wrap:wrap;gap:.6em;align-items:center}"
    "input,button{font:inherit;padding:.45em .7em;border-radius:6px;border:1px solid GrayText}"
    "button{background:var(--accent);color:var(--on-accent);border-color:var(--accent);cursor:pointer}"
    "input:focus-visible,button:focus-visible{outline:3px solid var(--accent);outline-offset:2px}"
)
_PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>FineSight: {title}</title><style>{style}</style></head>
<body><main><h1>FineSight</h1><p id="words" role="status">{words}</p>
<form method="get" action="{action}">{hidden}<label>Token <input type="password" name="token" required autofocus
autocomplete="current-password" aria-describedby="words"></label> <button>{open}</button></form>
<p>{where}</p></main></body></html>
"""
_WORDS = {  # by language; the page itself has its own tables, which a browser gets only with the token
    "en": {
        "title": "sign in",
        "open": "Open",
        "where": "The token is in the address that the server printed when it started.",
        NEEDED: "This page needs a token.",
        WRONG: "That is not the token.",
        WAIT: "Too many wrong tokens: try again in {seconds} seconds.",
    },
    "de": {
        "title": "Anmeldung",
        "open": "Öffnen",
        "where": "Das Token steht in der Adresse, die der Server beim Start gezeigt hat.",
        NEEDED: "Diese Seite braucht ein Token.",
        WRONG: "Das ist nicht das Token.",
        WAIT: "Zu viele falsche Token: Versuchen Sie es in {seconds} Sekunden noch einmal.",
    },
}
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class WrongTokens:
    """Count the wrong tokens of each client. After some, each makes the client wait twice as long as the one before."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, tuple[int, float]] = OrderedDict()  # tries, and when the last one was

    def wait(self, address: str) -> int:
        """Return the seconds that this client has to wait until a token of it is looked at."""
        tries, last = self._clients.get(_network(address), (0, 0.0))
        if tries < FREE_TRIES:
            return 0
        pause = min(2.0 ** (tries - FREE_TRIES), LONGEST_WAIT)
        return max(0, math.ceil(last + pause - time.monotonic()))

    def add(self, address: str) -> None:
        """Count one."""
        key, now = _network(address), time.monotonic()
        tries, last = self._clients.pop(key, (0, now))
        self._clients[key] = (1 if now - last > FORGIVEN else tries + 1, now)
        if len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)

    def forget(self, address: str) -> None:
        """Forgive a client that had the right one."""
        self._clients.pop(_network(address), None)


def _network(address: str) -> str:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if known.version == 4:
        return str(known)
    return str(ipaddress.ip_network((int(known), NETWORK_BITS), strict=False))


def refusal_words(why: str, seconds: int = 0, language: str = "en") -> str:
    """Return the sentence that says why there is no page."""
    return _WORDS[language][why].format(seconds=seconds)


def sign_in_page(
    status: int,
    why: str,
    seconds: int,
    path: str,
    query: list[tuple[str, str]],
    headers: Mapping[str, str],
    accepted: str = "",
) -> HTMLResponse:
    """Return the form that asks for the token and then opens ``path`` with it. ``accepted`` is Accept-Language."""
    wanted = [value for key, value in query if key == "lang"] + [one.strip()[:2].lower() for one in accepted.split(",")]
    language = next((one for one in wanted if one in _WORDS), "en")
    hidden = "".join(
        f'<input type="hidden" name="{html.escape(key)}" value="{html.escape(value)}">' for key, value in query
    )
    table, words = _WORDS[language], refusal_words(why, seconds, language)
    texts = {name: table[name] for name in ("title", "open", "where")}
    page = _PAGE.format(lang=language, style=_STYLE, words=words, action=html.escape(path), hidden=hidden, **texts)
    return HTMLResponse(page, status, headers={**headers, "Content-Security-Policy": _POLICY})
