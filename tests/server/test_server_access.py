"""Who may ask a server that listens on localhost, where every page of every site can reach it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.websockets import WebSocketDisconnect

from finesight.errors import FineSightError
from finesight.server.config import ServerConfig, is_loopback
from finesight.server.guard import host_name
from finesight.server.run_server import bind, browser_address
from serving import BASE, Gallery, Web, drawn, refused, web_for

TOKEN = "a-word-nobody-guesses"


# --- host and origin --------------------------------------------------------------------------------------------------


OWN_NAMES = ("localhost", "localhost:9", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "localhost.")
OTHER_NAMES = (
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.7",
    "",
    "[",
)


@pytest.mark.parametrize("path", ["/api/health", "/", "/docs", "/openapi.json"])
def test_names(web: Web, path: str) -> None:
    """A page whose name was made to point at 127.0.0.1 (DNS rebinding) sends that name."""
    for host in OWN_NAMES:
        assert web.get(path, headers={"host": host}).status_code == 200, host
    for host in (*OTHER_NAMES, "::1"):
        refused(web.get(path, headers={"host": host}), 400, "--allow-host")


def test_names_that_are_allowed(gallery: Gallery) -> None:
    with web_for(gallery.index, host="192.168.1.5", allow_hosts=["birds.example"]) as web:
        for host in ("birds.example", "Birds.Example:80", "192.168.1.5", "10.1.2.3", "[fe80::1]:80", "localhost"):
            assert web.get("/api/health", headers={"host": host}).status_code == 200, host
        refused(web.get("/api/health", headers={"host": "evil.example"}), 400)
    with web_for(gallery.index, host="") as web:  # every network
        refused(web.get("/api/health", headers=[("host", "localhost"), ("host", "localhost")]), 400)


OTHER_ORIGINS = (
    "http://evil.example",
    "null",
    "http://127.0.0.1:9999",
    f"{BASE}.evil.example",
)  # another port is another


def test_forms(web: Web) -> None:
    """Only the page itself may send one."""
    for origin in OTHER_ORIGINS:
        refused(web.upload(drawn(), {"origin": origin}), 403, "other sites")
    for site in ("cross-site", "same-site"):
        refused(web.upload(drawn(), {"sec-fetch-site": site}), 403, "other sites")
    for headers in ({"origin": BASE}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert web.upload(drawn(), headers).status_code == 200


def test_pages_of_other_sites_may_link_but_not_ask(web: Web) -> None:
    for site in ("cross-site", "same-site"):
        assert web.get("/", headers={"sec-fetch-site": site}).status_code == 200
        refused(web.get("/api/items", headers={"sec-fetch-site": site}), 403, "other sites")


def test_no_other_site_may_read_or_show(web: Web) -> None:
    answer = web.get("/api/items", headers={"origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    refused(web.options("/api/search", headers={"origin": "http://evil.example"}), 405)


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(gallery: Gallery) -> Iterator[Web]:
    with web_for(gallery.index, token=TOKEN) as web:
        yield web


WRONG = ("Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ")


@pytest.mark.parametrize(
    "headers", [{}, {"cookie": f"finesight={TOKEN}"}, *({"authorization": word} for word in WRONG)]
)
def test_strangers(guarded: Web, headers: dict[str, str]) -> None:
    paths = ("/api/health", "/", "/docs", "/openapi.json", f"/api/health?token={TOKEN}", "/?token=wrong", "/?token=")
    for path in paths:
        answer = guarded.get(path, headers=headers)
        sentence = refused(answer, 401, "token")
        assert TOKEN not in sentence
        assert answer.headers["www-authenticate"] == "Bearer"
    refused(guarded.upload(drawn(), headers), 401)


def test_the_word_is_known(guarded: Web) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/health", headers=headers).status_code == 200
    assert guarded.upload(drawn(), headers).status_code == 200
    assert guarded.get("/api/health", headers={"authorization": f"bearer  {TOKEN} "}).status_code == 200


def test_the_page_is_opened_with_the_word(guarded: Web) -> None:
    answer = guarded.get(f"/?token={TOKEN}&a=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?a=1"  # no longer in the address, nor in what is sent on
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/").status_code == 200  # the client keeps it, as a browser does
    assert guarded.upload(drawn(), {"origin": BASE}).status_code == 200
    refused(guarded.upload(drawn(), {"origin": "http://evil.example"}), 403)
    refused(guarded.get("/", headers={"host": "evil.example"}), 400)
    other = guarded.get(f"//evil.example/?token={TOKEN}")
    assert not other.headers.get("location", "/x").startswith("//")


def test_guessing_is_slow(guarded: Web) -> None:
    """A thousand a second could be tried before."""
    right = {"authorization": f"Bearer {TOKEN}"}
    for _ in range(20):  # a busy machine may take longer than the second that must be waited
        statuses = [guarded.get("/api/health", headers={"authorization": f"Bearer {n}"}).status_code for n in range(40)]
        answer = guarded.get("/api/health", headers=right)  # refused, too: else guessing would go on
        if answer.status_code == 429:
            break
    assert statuses[:10] == [401] * 10
    assert statuses.count(401) <= 16, "each one more makes the next wait twice as long"
    assert set(statuses) == {401, 429}
    refused(answer, 429, "Too many wrong tokens")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    refused(guarded.get("/api/health"), 401, "needed")  # which is no guess


def test_a_client_that_knows_the_word_is_not_slowed(guarded: Web) -> None:
    for _ in range(3):
        for _ in range(8):
            guarded.get("/api/health", headers={"authorization": "Bearer wrong"})
        assert guarded.get("/api/health", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    guarded.get(f"/?token={TOKEN}")
    for _ in range(40):
        guarded.get("/api/health", headers={"authorization": "Bearer wrong"})
    assert guarded.get("/api/health").status_code == 200  # by its cookie, whatever others at its address do


def test_a_browser_gets_a_form(guarded: Web) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = guarded.get('/judge?a="><script>&token=', headers=browser)
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    assert ":root{color-scheme:light dark" in answer.text, "on the body it would leave the page white in the dark"
    assert 'action="/judge"' in answer.text
    assert 'name="a" value="&quot;&gt;&lt;script&gt;"' in answer.text
    assert "That is not the token" in guarded.get("/?token=wrong", headers=browser).text
    entered = guarded.get(f"/judge?a=1&token={TOKEN}", headers=browser)
    assert (entered.status_code, entered.headers["location"]) == (303, "/judge?a=1")
    assert guarded.get("/judge", headers=browser).status_code == 200
    guarded.cookies.clear()
    refused(guarded.get("/api/health", headers=browser), 401)
    refused(guarded.get("/"), 401, "token")


def test_wrong_values_are_told_in_words(web: Web) -> None:
    for path, params in (
        ("search", {"query": "x"}),
        ("search", {"query": "1", "box": "a"}),
        ("items/x", {}),
        ("items/x/thumb", {}),
        ("explain", {"query": "1", "hit": "*"}),
    ):
        answer = web.get(f"/api/{path}", params=params)
        sentence = refused(answer, 422)
        assert not set("^$[]{}\\") & set(sentence), sentence


# --- small parts ------------------------------------------------------------------------------------------------------


def test_host_names() -> None:
    assert [host_name(text) for text in ("a:1", "[::1]:8", "[::1]", "A.b.", " x ")] == ["a", "::1", "::1", "a.b", "x"]
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"))


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert browser_address(first, "127.0.0.1") == f"http://127.0.0.1:{port}/"
        with pytest.raises(FineSightError, match=f"Port {port} .* is taken .* --port"):
            bind("127.0.0.1", port)
    with pytest.raises(FineSightError, match="--host no-such-host"):
        bind("no-such-host.invalid", 0)
    with bind("0.0.0.0", 0) as every:
        assert browser_address(every, "0.0.0.0").startswith("http://127.0.0.1:")


def test_words_that_headers_cannot_hold(gallery: Gallery) -> None:
    for token in ("two words", "žluťoučký", "line\nbreak"):
        with pytest.raises(FineSightError, match="--token"):
            ServerConfig(token=token)
    assert TOKEN not in repr(ServerConfig(token=TOKEN))
    with web_for(gallery.index, token="") as web:  # an empty word is none
        assert web.get("/api/health").status_code == 200


def test_a_websocket_is_closed(web: Web) -> None:
    with pytest.raises(WebSocketDisconnect), web.websocket_connect("/api/search"):
        pass


@pytest.mark.parametrize("requests", [0, 1])
def test_too_many_requests(gallery: Gallery, requests: int) -> None:
    with web_for(gallery.index, requests=requests) as web:
        answer = web.get("/api/health")
        if requests:
            assert answer.status_code == 200
        else:
            refused(answer, 503, "too many requests")
            assert answer.headers["retry-after"] == "1"
