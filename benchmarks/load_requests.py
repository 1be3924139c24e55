"""The traffic of ``benchmarks/load.py``: what ordinary clients ask for, and what hostile ones send."""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from load_answers import (
    DEPTH,
    HITS,
    Ask,
    chosen_between,
    count_between,
    count_of,
    digest_of,
    grouped_of,
    hits_between,
    hits_of,
    list_between,
    list_of,
    numbers_of,
    same_hits,
    same_numbers,
    same_value,
)
from load_client import LOST, PATIENCE, Answer, Connection, Site, form, read_answer
from PIL import Image

LARGEST = 20 * 2**20  # bytes of an upload that the server takes
BOXES = ("0.2,0.2,0.5,0.5", "0.1,0.3,0.6,0.4", "0.4,0.1,0.5,0.7")
PAGES = ("/", "/app.js", "/style.css", "/search.js", "/icon.svg", "/judge", "/docs", "/openapi.json")
WEIGHTS = {  # how often each kind is asked for
    "search by a photo": 12,
    "search by a photo, a part": 4,
    "search by an item": 22,
    "search by an item, a part": 3,
    "search with variety": 3,
    "search by an item that comes and goes": 2,
    "why two are alike": 3,
    "where it looks": 2,
    "where it looks, drawn": 1,
    "list": 6,
    "one item": 4,
    "thumbnail": 20,
    "thumbnail, known": 5,
    "picture": 2,
    "groups": 1,
    "status": 5,
    "page": 5,
}
SEARCHES = ("search by a photo", "search by an item")  # that the plain server knows too


def ordinary(
    site: Site, photos: Sequence[bytes], stable: Sequence[str], passing: Sequence[str], names: Sequence[str]
) -> list[Ask]:
    """All requests of ordinary clients. ``stable`` are ids that every state has, ``passing`` those that one lacks."""
    search, asks = "/api/search", []
    for photo in photos:
        asks.append(_hits("search by a photo", *(site.post(photo, k=k) for k in (HITS, DEPTH))))
    for number, photo in enumerate(photos[: len(photos) // 2]):
        box = BOXES[number % len(BOXES)]
        asks.append(_hits("search by a photo, a part", *(site.post(photo, k=k, box=box) for k in (HITS, DEPTH))))
    for kind, ids in (("search by an item", stable), ("search by an item that comes and goes", passing)):
        for item in ids:
            asks.append(_hits(kind, *(site.get(search, query=item, k=k) for k in (HITS, DEPTH))))
    few = stable[: max(2, len(stable) // 5)]
    for number, item in enumerate(few):
        box = BOXES[number % len(BOXES)]
        requests = (site.get(search, query=item, k=k, box=box) for k in (HITS, DEPTH))
        asks.append(_hits("search by an item, a part", *requests))
        varied = site.get(search, query=item, k=HITS, diversity=0.4, min_score=0.3)
        asks.append(Ask("search with variety", varied, varied, hits_of, same_hits, chosen_between))
        asks.append(_numbers("where it looks", site.get(f"/api/attention/{item}")))
        asks.append(_bytes("where it looks, drawn", site.get(f"/api/attention/{item}", format="png")))
        asks.append(_numbers("one item", site.get(f"/api/items/{item}")))
        asks.append(_bytes("picture", site.get(f"/api/items/{item}/image")))
    for one, other in pairwise(few):
        asks.append(_numbers("why two are alike", site.get("/api/explain", query=one, hit=other)))
    for item in stable:
        asks.append(_bytes("thumbnail", site.get(f"/api/items/{item}/thumb")))
    for number, name in enumerate(names):
        listed = site.get("/api/items", text=name, limit=50, offset=10 * (number % 3))
        asks.append(Ask("list", listed, listed, list_of, same_value, list_between))
    for count in (8, 20):
        groups = site.get("/api/clusters", count=count)
        asks.append(Ask("groups", groups, groups, grouped_of, same_value, count_between))
    health = site.get("/api/health")
    asks.append(Ask("status", health, health, count_of, same_value, count_between))
    asks += [_bytes("page", site.get(page)) for page in PAGES]
    return asks


def known_thumbnails(site: Site, stable: Sequence[str], tags: dict[str, str]) -> list[Ask]:
    """Thumbnails that the browser has already: 304."""
    asks = [
        _bytes("thumbnail, known", site.get(f"/api/items/{i}/thumb", headers={"If-None-Match": tags[i]}))
        for i in stable
    ]
    return asks


def _hits(kind: str, data: bytes, record: bytes) -> Ask:
    return Ask(kind, data, record, hits_of, same_hits, hits_between)


def _numbers(kind: str, data: bytes) -> Ask:
    return Ask(kind, data, data, numbers_of, same_numbers)


def _bytes(kind: str, data: bytes) -> Ask:
    return Ask(kind, data, data, digest_of, same_value, fine=(200, 304))


# --- hostile ----------------------------------------------------------------------------------------------------------

RARE = 0.2  # weight of attacks that cost a second of the processor each
Send = Callable[[Connection], Awaitable[Answer | None]]


@dataclass(frozen=True)
class Attack:
    """Something a server must refuse or survive. -> an answer with one of these statuses, or none where 0 is one"""

    kind: str
    send: Send
    fine: tuple[int, ...]
    source: str = ""  # the address that the client has
    weight: float = 1.0  # how often it is made


def attacks(site: Site, photo: bytes, largest: int) -> list[Attack]:
    """All of them. ``largest`` is what an upload may have, in bytes."""
    junk, whole = np.random.default_rng(0).bytes(20_000), site.post(photo)
    other, foreign = {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}
    multipart = {"Content-Type": "multipart/form-data; boundary=b"}
    unclosed = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n' + photo[:5000]
    missing = site.head("POST", "/api/search", multipart | {"Content-Length": "5"}) + b"--b--"
    broken = site.head("POST", "/api/search", multipart | {"Content-Length": str(len(unclosed))}) + unclosed
    plain = site.head("POST", "/api/search", {"Content-Type": "image/jpeg", "Content-Length": "4"}) + photo[:4]
    stranger = Site(site.host, site.port)  # has no cookie
    wrong = stranger.get("/api/health", headers={"Authorization": "Bearer wrong"})
    simple: dict[str, tuple[bytes, tuple[int, ...]]] = {
        "not an image": (site.post(junk), (415,)),
        "an empty file": (site.post(b""), (415,)),
        "half a JPEG": (site.post(photo[: len(photo) // 2]), (422, 200)),
        "a bomb of pixels": (site.post(bomb()), (413,)),
        "a broken form": (broken, (400,)),
        "a form without a file": (missing, (400, 422)),
        "no form": (plain, (415,)),
        "a foreign host name": (site.get("/api/health", headers=other), (400,)),
        "another site's form": (site.post(photo, headers=foreign), (403,)),
        "an unknown item": (site.get("/api/search", query="123456789"), (404,)),
        "a wrong number": (site.get("/api/search", query="1", k="many"), (422,)),
        "a path that leaves the folder": (site.get("/..%2f..%2f..%2fetc/passwd"), (404,)),
        "a header of 200 kB": (site.get("/", headers={"X-Long": "y" * 200_000}), (400, 431)),
        "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n", (400,)),
    }
    found = [Attack(kind, _simple(data), fine) for kind, (data, fine) in simple.items()]
    found.append(Attack("a large picture", _simple(site.post(wide())), (200,), weight=RARE))
    found.append(Attack("a wrong token", _simple(wrong), (401, 429), "127.0.0.2"))
    found.append(Attack("too large, as it says", _declared(site, largest + 10 * 2**20), (413,)))
    found.append(Attack("too large, in pieces", _chunked(site, largest + 2**20), (413,), weight=RARE))
    found.append(Attack("a body that stops", _trickle(site, 12, 1.0), (0,)))
    found.append(Attack("a body that never ends", _trickle(site, 100, 0.5), (408, 0)))
    found.append(Attack("a header that never ends", _half_header, (0, 408)))
    found.append(Attack("leaves at once", _leave(whole), (0,)))
    found.append(Attack("leaves in the middle", _leave(whole[: len(whole) // 2]), (0,)))
    return found


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 900 million pixels."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


def wide() -> bytes:
    """A PNG of 36 million pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (6000, 6000), (90, 120, 150)).save(buffer, "PNG")
    return buffer.getvalue()


def _simple(data: bytes) -> Send:
    async def send(connection: Connection) -> Answer | None:
        return await connection.ask(data)

    return send


def _declared(site: Site, size: int) -> Send:
    """A body of so many bytes, of which only the first megabyte comes."""
    kind = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(size)}
    return _simple(site.head("POST", "/api/search", kind) + bytes(2**20))


def _chunked(site: Site, size: int) -> Send:
    head = site.head(
        "POST", "/api/search", {"Content-Type": "multipart/form-data; boundary=b", "Transfer-Encoding": "chunked"}
    )
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'

    async def send(connection: Connection) -> Answer | None:
        reader, writer = await connection.open()
        answer = asyncio.create_task(read_answer(reader))
        writer.write(head + b"%x\r\n" % len(part) + part + b"\r\n")
        with suppress(*LOST):
            for _ in range(size // 2**18):
                if answer.done():
                    break
                writer.write(b"40000\r\n" + bytes(2**18) + b"\r\n")
                await writer.drain()
            else:
                writer.write(b"0\r\n\r\n")
        return await asyncio.wait_for(answer, PATIENCE)

    return send


def _trickle(site: Site, times: int, pause: float) -> Send:
    """A picture that comes a few bytes at a time. -> the answer if there is one before the client gives up"""
    body = form(bytes(10_000), "slow.jpg")
    kind = {"Content-Type": "multipart/form-data; boundary=finesight-load", "Content-Length": str(len(body))}
    head = site.head("POST", "/api/search", kind)

    async def send(connection: Connection) -> Answer | None:
        reader, writer = await connection.open()
        writer.write(head)
        answer = asyncio.create_task(read_answer(reader))
        for n in range(times):
            writer.write(body[10 * n : 10 * n + 10])
            done, _ = await asyncio.wait([answer], timeout=pause)
            if done:
                return answer.result()
        answer.cancel()
        return None

    return send


async def _half_header(connection: Connection) -> Answer | None:
    """-> nothing, when the server has closed the connection"""
    reader, writer = await connection.open()
    writer.write(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    said = await asyncio.wait_for(reader.read(1000), PATIENCE)
    return Answer(int(said.split()[1]), {}, said.partition(b"\r\n\r\n")[2]) if said else None


def _leave(data: bytes) -> Send:
    async def send(connection: Connection) -> Answer | None:
        _, writer = await connection.open()
        writer.write(data)
        await writer.drain()
        return None

    return send


async def attack(site: Site, one: Attack) -> tuple[int, str]:
    """-> the status that it got (0: none, -1: the connection was cut), and what is wrong with it"""
    connection = Connection(site, one.source)
    try:
        answer = await one.send(connection)
    except (*LOST, TimeoutError) as error:
        return -1, f"{one.kind}: {type(error).__name__}"
    finally:
        connection.close()
    status = 0 if answer is None else answer.status
    if answer is not None and status >= 400 and status != 431 and _speaks(one) and (words := answer.problem):
        return status, f"{one.kind}: {words}"
    return status, "" if status in (*one.fine, 503) else f"{one.kind}: {status}, not {one.fine}"


def _speaks(one: Attack) -> bool:
    """Whether the request is HTTP that reaches the application, which answers by sentences."""
    return one.kind not in ("no HTTP", "a header of 200 kB", "a header that never ends")
