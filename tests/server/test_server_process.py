"""The server as a process on a real socket: many at a time, slow ones, ones that leave, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from finesight.cli.serve import serve
from finesight.errors import FineSightError
from finesight.server.run_server import bind
from serving import Gallery, Serving, copy_gallery, drawn, form, in_thread, web_for

pytestmark = pytest.mark.slow

REQUESTS, CONNECTIONS = 2000, 100


@pytest.fixture(scope="module")
def server(gallery: Gallery) -> Iterator[Serving]:
    with Serving("serve", gallery.index, "--port", "0", "--queue", "4", "--max-upload-mb", "1") as running:
        yield running


def well(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as web:
        assert web.get("/api/health").json()["status"] == "ok"
        assert len(web.post("/api/search", files=form(drawn())).json()["hits"]) == 8


# --- many at a time ---------------------------------------------------------------------------------------------------


def questions(web: httpx.Client) -> dict[str, bytes]:
    """Whole requests, ready to be sent: building them over and over would keep the client busier than the server."""
    item = web.get("/api/items").json()["items"][0]["id"]
    asks = {
        "upload": web.build_request("POST", "/api/search", files=form(drawn("JPEG", (200, 150)))),
        "search": web.build_request("GET", "/api/search", params={"query": item}),
        "box": web.build_request("GET", "/api/search", params={"query": item, "box": "0.1,0.1,0.5,0.5"}),
        "thumb": web.build_request("GET", f"/api/items/{item}/thumb"),
        "health": web.build_request("GET", "/api/health"),
    }
    return {
        kind: f"{ask.method} {ask.url.raw_path.decode()} HTTP/1.1\r\n".encode()
        + b"".join(name + b": " + value + b"\r\n" for name, value in ask.headers.raw)
        + b"\r\n"
        + ask.read()
        for kind, ask in asks.items()
    }


async def storm(url: str, asks: dict[str, bytes]) -> tuple[Counter[tuple[str, int]], set[str]]:
    """All kinds in turn, by many connections at once; -> counts by kind and status, and what refusals said."""
    counts: Counter[tuple[str, int]] = Counter()
    details: set[str] = set()
    waiting = iter(range(REQUESTS))
    kinds, parts = list(asks), urlsplit(url)

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in waiting:
            kind = kinds[number % len(kinds)]
            writer.write(asks[kind])
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))
            status = int(head.split()[1])
            counts[kind, status] += 1
            if status != 200:
                details.add(json.loads(body)["detail"])
                assert "retry-after: 1" in head
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
    return counts, details


def test_thousands_at_once(server: Serving) -> None:
    well(server.url)
    threads, memory = server.threads, server.memory
    with httpx.Client(base_url=server.url, timeout=60) as web:
        asks = questions(web)
    counts, details = asyncio.run(storm(server.url, asks))
    assert sum(counts.values()) == REQUESTS
    assert {status for _, status in counts} <= {200, 503}, (counts, details)
    assert counts["upload", 200] + counts["box", 200] > 0
    assert counts["upload", 503] + counts["box", 503] > 0, "the line was never full: nothing was tested"
    assert counts["search", 200] > 0  # what needs no network goes on beside
    assert server.threads <= threads + 8
    assert server.memory <= memory + 300 * 2**20
    well(server.url)


# --- slow ones, and ones that leave -----------------------------------------------------------------------------------

HEAD = b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=60)


def received(sock: socket.socket) -> bytes:
    """Head and body of an answer in JSON."""
    answer = b""
    while b"}" not in answer and (more := sock.recv(10_000)):
        answer += more
    return answer


def test_slow_and_silent_clients(gallery: Gallery) -> None:
    with (
        web_for(gallery.index, upload_seconds=1.5, header_seconds=0.6, queue=2) as web,
        in_thread(web.service) as (url, _),
    ):
        with connected(url) as silent, connected(url) as trickle, connected(url) as slow:
            slow.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + PART)  # and then no more
            trickle.sendall(b"GET /api/health HT")
            start = time.monotonic()
            assert silent.recv(100) == b""
            assert trickle.recv(100) == b""
            answer = received(slow)
            assert time.monotonic() - start < 25, "the usual limits are 30 and 15 seconds"
            assert b" 408 " in answer.split(b"\r\n")[0]
            assert b"took longer" in answer
        # one that takes its time between two questions is not cut off in the middle of an answer
        with httpx.Client(base_url=url, timeout=60) as patient:
            for _ in range(3):
                assert patient.get("/api/health").status_code == 200
                time.sleep(0.4)
        well(url)
        assert (web.service.network.size, web.service.uploads.used) == (0, 0)


@pytest.mark.parametrize("settings", [{}, {"arriving": 8}], ids=["all are received", "few are received"])
def test_bodies_that_do_not_come_take_no_place(gallery: Gallery, settings: dict[str, int]) -> None:
    """Sixty of them took every place of the queue for half a minute."""
    with web_for(gallery.index, queue=2, **settings) as web, in_thread(web.service) as (url, _):
        with contextlib.ExitStack() as open_ones:
            slow = [open_ones.enter_context(connected(url)) for _ in range(60)]
            for number, one in enumerate(slow):
                one.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + PART)
                if settings and number == 7:
                    time.sleep(1.2)  # a body that came no further makes room only after a second
            deadline = time.monotonic() + 20
            with httpx.Client(base_url=url, timeout=60) as client:
                while client.post("/api/search", files=form(drawn())).status_code != 200:
                    assert time.monotonic() < deadline, "the usual limit is 30 seconds"
                    time.sleep(0.2)
            assert web.service.network.size == 0
        well(url)


def test_clients_that_leave(gallery: Gallery) -> None:
    data = drawn()
    body = PART + data + b"\r\n--b--\r\n"
    with web_for(gallery.index, queue=3) as web, in_thread(web.service) as (url, _):
        for number in range(40):
            sock = connected(url)
            sent = body if number % 2 else body[: len(body) // 2]  # the whole picture, or half of it
            sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + sent)
            sock.close()
        deadline = time.monotonic() + 120
        while (web.service.network.size or web.service.uploads.used) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (web.service.network.size, web.service.uploads.used) == (0, 0)
        well(url)


def test_more_than_it_takes_is_told_while_it_is_sent(server: Serving) -> None:
    with connected(server.url) as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for data in (PART, *[bytes(65_536)] * 24):  # 1.5 MB, of 1 MB allowed
                sock.sendall(b"%x\r\n" % len(data) + data + b"\r\n")
            sock.sendall(b"0\r\n\r\n")
        answer = received(sock)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"larger than 1 MB" in answer
    well(server.url)


def test_large_uploads_leave_no_memory_behind(gallery: Gallery) -> None:
    """The network keeps freed memory for its next image; what uploads took must not stay with it."""
    size = 40 * 2**20
    with Serving("serve", gallery.index, "--port", "0", "--max-upload-mb", "39") as running:
        for _ in range(2):
            well(running.url)
        before = running.memory
        with contextlib.ExitStack() as open_ones:
            socks = [open_ones.enter_context(connected(running.url)) for _ in range(3)]
            for sock in socks:
                sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % len(PART) + PART + b"\r\n")
            for sock in socks:  # none of them ends: all three are held at a time
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(b"%x\r\n" % (size - 2 * 2**20) + bytes(size - 2 * 2**20) + b"\r\n")
            deadline = time.monotonic() + 60
            while running.memory < before + 60 * 2**20:
                assert time.monotonic() < deadline, "the uploads were never held: nothing was tested"
                time.sleep(0.05)
        deadline = time.monotonic() + 60
        while running.memory > before + 30 * 2**20:
            assert time.monotonic() < deadline, (before, running.memory)
            time.sleep(0.2)
        well(running.url)


def test_what_is_not_http(server: Serving) -> None:
    for junk in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        b"GET / HTTP/9\r\n\r\n",
        b"\r\n" * 50 + b"x",
    ):
        with connected(server.url) as sock:
            sock.sendall(junk)
            sock.shutdown(socket.SHUT_WR)
            assert b"Traceback" not in sock.recv(10_000)
    with connected(server.url) as sock:
        sock.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 200_000)
        assert b" 400 " in sock.recv(10_000).split(b"\r\n")[0]
    with connected(server.url) as sock:  # no Host at all
        sock.sendall(b"GET /api/health HTTP/1.0\r\n\r\n")
        assert b" 400 " in sock.recv(10_000).split(b"\r\n")[0]
    well(server.url)


# --- the command ------------------------------------------------------------------------------------------------------


def ended_well(running: Serving, code: int = 0, number: signal.Signals = signal.SIGINT) -> str:
    """Stop the server, and return what it said on standard error."""
    ended, seconds, err = running.stop(number)
    assert ended in (code, 130 if code == 0 else code)
    assert seconds < 14, "it waits three for running requests, and for no client that has 15 for its header"
    assert "Traceback" not in err
    return err


def test_ctrl_c_ends_a_server_with_a_token(gallery: Gallery) -> None:
    with (
        Serving(
            "serve", gallery.index.parent, "--port", "0", FINESIGHT_TOKEN="a/word&more"
        ) as running,  # a run: its index
        httpx.Client(follow_redirects=True, timeout=60) as browser,
    ):
        address, _, word = running.url.partition("?token=")
        assert word == "a%2Fword%26more"
        assert httpx.get(f"{address}api/health", timeout=60).status_code == 401
        assert browser.get(running.url).status_code == 200
        assert browser.get(f"{address}api/health").status_code == 200  # the connection stays open
        with connected(address) as idle:
            idle.sendall(HEAD)
            err = ended_well(running)
    assert "Stopped." in err
    assert "Warning" not in err


def test_ctrl_c_twice_in_the_middle_of_an_upload_to_everyone(gallery: Gallery) -> None:
    with Serving("serve", gallery.index, "--port", "0", "--host", "0.0.0.0") as running, connected(running.url) as slow:
        slow.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + PART)
        well(running.url)
        running.send(signal.SIGINT)
        time.sleep(0.2)
        err = ended_well(running)
    assert "Stopped." in err
    assert "Warning" in err  # there is no --token
    assert "--token" in err


def test_the_index_is_brought_up_to_date_meanwhile(gallery: Gallery, tmp_path: Path) -> None:
    index, images = copy_gallery(gallery, tmp_path)
    (images / "new.png").write_bytes(drawn(seed=500))
    with Serving("serve", index, "--port", "0", "--update", images, "--quiet") as running:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            health = httpx.get(f"{running.url}api/health", timeout=60).json()
            if health["status"] == "ok" and health["items"] == 9:
                break
            time.sleep(0.05)
        assert (health["items"], health["problem"]) == (9, None)
        hits = httpx.post(f"{running.url}api/search", files=form(drawn(seed=500)), timeout=60).json()["hits"]
        assert hits[0]["path"] == "new.png"
        err = ended_well(running, -signal.SIGTERM, signal.SIGTERM)
    assert "1 added" in err


def test_what_cannot_be_served(gallery: Gallery, tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FineSightError, match=f"Port {port} of 127.0.0.1 is taken"):
            serve(str(gallery.index), port=port)
    with pytest.raises(FineSightError, match="no index"):
        serve(str(tmp_path / "nothing"), port=0)
    with pytest.raises(FineSightError, match="--token"):
        serve(str(gallery.index), port=0, token="two words")
