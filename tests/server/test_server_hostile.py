"""What is sent to a server that should not be: each is a sentence and a 4xx, and the server goes on."""

from __future__ import annotations

import io
import os
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from bombs import png_bomb, scan_bomb
from finesight.server.safe_files import ImageMissing, ImageOutside, open_inside
from finesight.server.upload import FIELDS, shown_name
from serving import Gallery, Serving, Web, copy_gallery, drawn, form, indexed, refused, web_for

SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is a huge one, with data for a part of it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def frames(kind: str) -> bytes:
    pictures = [Image.new("RGB", (40, 40), color) for color in ("red", "green", "blue")]
    buffer = io.BytesIO()
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:], duration=50)
    return buffer.getvalue()


def still_well(web: Web) -> None:
    assert web.ask("health")["status"] == "ok"
    assert len(web.search(drawn())["hits"]) == 8


# --- uploads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        pytest.param(b"", 415, "empty", id="nothing"),
        pytest.param(b"just some text", 415, "not a picture", id="text"),
        pytest.param(SVG, 415, "SVG", id="svg"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd) run", 415, "not a picture", id="postscript"),
        pytest.param(b"PK\x03\x04" + bytes(200), 415, "not a picture", id="zip"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(30), 415, "not a picture", id="broken header"),
        pytest.param(drawn("PNG", (200, 200))[:700], 422, "cannot be used", id="truncated png"),
        pytest.param(drawn("JPEG", (300, 300))[:2000], 422, "cannot be used", id="truncated jpeg"),
        pytest.param(bomb(900, 1000), 422, "cannot be used", id="less than it says"),
        pytest.param(bomb(1001, 1000), 413, "million pixels", id="too many pixels"),
        pytest.param(bomb(60_000, 60_000), 413, "million pixels", id="bomb"),
        pytest.param(bomb(2**31 - 1, 2**31 - 1), 413, "million pixels", id="bomb of any size"),
        pytest.param(drawn("JPEG", (1200, 900)), 413, "million pixels", id="honest but large"),
        pytest.param(bytes(200_001), 413, "larger than", id="one byte too many"),
    ],
)
def test_what_is_no_picture(web: Web, data: bytes, status: int, word: str) -> None:
    refused(web.upload(data), status, word)
    still_well(web)


def in_pieces(kind: str, piece: bytes, count: int, *, at: int | None = None) -> bytes:
    """A picture of that kind with many small pieces put into its headers."""
    data = drawn(kind)
    start = {"JPEG": 2, "PNG": 33, "GIF": 13 + 3 * (2 << (data[10] & 7))}[kind] if at is None else len(data) + at
    return data[:start] + count * piece + data[start:]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (in_pieces("JPEG", b"\xff\xe1\x00\x0aExif\0\0aa", 15_000), 415),  # each joined to those before
        (in_pieces("JPEG", b"\xff\xfe\x00\x02", 40_000), 415),
        (in_pieces("JPEG", b"\xff", 180_000), 415),
        (in_pieces("PNG", chunk(b"zzZz", b""), 15_000), 415),
        (in_pieces("GIF", b"\x21\xfe\x01a\x00", 35_000), 415),
    ],
    ids=["exif", "comments", "padding", "chunks", "extensions"],
)
def test_a_million_tiny_pieces(web: Web, data: bytes, status: int) -> None:
    """Of 20 MB of them a decoder would make a minute's work, or an hour's."""
    assert Image.open(io.BytesIO(data)).size == (48, 36)  # which it would take
    refused(web.upload(data), status, "damaged")
    still_well(web)


def test_tiny_pieces_after_the_picture(web: Web, gallery: Gallery) -> None:
    data = in_pieces("PNG", chunk(b"zzZz", b""), 15_000, at=-12)
    assert web.upload(data).status_code == 200  # far below the limit
    with web_for(gallery.index, reads=20_000) as strict:
        refused(strict.upload(data), 422, "too many pieces")


def test_what_a_camera_hides_is_not_too_much(web: Web) -> None:
    """A profile of 3 MB and long comments are some hundred pieces."""
    segment = b"ICC_PROFILE\0\1\xff" + bytes(500)
    data = in_pieces("JPEG", b"\xff\xe2" + struct.pack(">H", len(segment) + 2) + segment, 250)
    assert web.upload(data).status_code == 200


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_of_an_animation_the_first_picture_counts(web: Web, kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(buffer, "PNG")
    still = web.search(buffer.getvalue())
    moving = web.search(frames(kind))
    assert [hit["id"] for hit in moving["hits"]] == [hit["id"] for hit in still["hits"]]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ptáček – 鳥 🐦.png", "ptáček – 鳥 🐦.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\bird.png", "bird.png"),
        ("\u202egnp.exe", "gnp.exe"),  # turns what follows around
        ("a\0b\r\nSet-Cookie: x.png", "abSet-Cookie: x.png"),
        (unicodedata.normalize("NFD", "é") + ".png", unicodedata.normalize("NFD", "é") + ".png"),
        ("\ud800.png", ".png"),
        ("x" * 5000 + ".png", "x" * 120),
        ("   ", ""),
        ("", ""),
    ],
)
def test_names(name: str, shown: str) -> None:
    assert shown_name(name) == shown


def test_odd_names_are_only_shown(web: Web) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="../\xff\xfe\xe2\x80\xae\xf0\x9f\x90\xa6.png"'
    body += b"\r\n\r\n" + drawn() + b"\r\n--b--\r\n"
    answer = web.post("/api/search", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 200
    assert answer.json()["query"]["name"].endswith(".png")
    assert answer.json()["query"]["name"].isprintable()


FORM = "multipart/form-data; boundary=b"
MULTIPART = {"content-type": FORM}
PART = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
TOO_MANY = b"".join(PART % b"x%d" % n + b"1\r\n" for n in range(FIELDS + 1)) + b"--b--\r\n"
NO_FORMS: dict[str, tuple[bytes, str | None, int, str]] = {
    "json": (b"{}", "application/json", 415, "multipart"),
    "bare picture": (drawn(), "image/png", 415, "multipart"),
    "no type": (b"x", None, 415, "multipart"),
    "no boundary": (b"x", "multipart/form-data", 400, "well-formed"),
    "empty boundary": (b"x", 'multipart/form-data; boundary="', 400, "cannot be read"),
    "quoted boundary": (b"x", 'multipart/form-data; boundary="\\"; a"', 400, ""),
    "long boundary": (b"x", "multipart/form-data; boundary=" + "b" * 500, 400, ""),
    "no parts": (b"nothing of the sort", FORM, 400, "cannot be read"),
    "empty body": (b"", FORM, 400, "well-formed"),
    "no end": (PART % b"file" + drawn(), FORM, 400, ""),
    "no name": (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", FORM, 400, ""),
    "no headers": (b"--b\r\n\r\nx\r\n--b--\r\n", FORM, 400, ""),
    "long header": (b"--b\r\nX: " + b"y" * 9000 + b"\r\n\r\n\r\n--b--", FORM, 400, ""),
    "many headers": (b"--b\r\n" + b"X: y\r\n" * 50 + b"\r\n\r\n--b--", FORM, 400, ""),
    "no file": (PART % b"k" + b"5\r\n--b--\r\n", FORM, 422, "file:"),
    "a file without a name": (PART % b"file" + b"x\r\n--b--\r\n", FORM, 422, "file:"),
    "long field": (PART % b"k" + b"5" * 5000 + b"\r\n--b--\r\n", FORM, 400, "size"),
    "many parts": (TOO_MANY, FORM, 400, "Too many"),
}


@pytest.mark.parametrize("what", NO_FORMS)
def test_forms_that_are_none(web: Web, what: str) -> None:
    body, kind, status, word = NO_FORMS[what]
    refused(web.post("/api/search", content=body, headers={"content-type": kind} if kind else {}), status, word)
    still_well(web)


@pytest.mark.parametrize("charset", ["undefined", "idna", "punycode", "utf-7", "utf-16", "zlib", "no such", "latin-1"])
def test_a_charset_is_not_believed(web: Web, charset: str) -> None:
    file = PART.replace(b'"\r', b'"; filename="xn--a..b\xff"\r') % b"file"
    body = PART % b"k" + b"5\r\n" + file + drawn() + b"\r\n--b--\r\n"
    headers = {"content-type": f"{FORM}; charset={charset}"}
    assert len(web.post("/api/search", content=body, headers=headers).json()["hits"]) == 5


def test_two_pictures(web: Web) -> None:
    two = [("file", ("a.png", drawn(), "image/png")), ("file", ("b.png", drawn(), "image/png"))]
    refused(web.post("/api/search", files=two), 400, "Too many files")


@pytest.mark.slow
def test_a_length_is_not_believed(web: Web) -> None:
    """Neither a small one that is a lie nor none at all lets more in."""

    def endless() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(400):
            yield bytes(1000)

    for headers in (MULTIPART, {**MULTIPART, "content-length": "10"}):
        refused(web.post("/api/search", content=endless(), headers=headers), 413, "larger")
    refused(web.post("/api/search", content=b"x", headers={**MULTIPART, "content-length": "9" * 15}), 413, "larger")
    still_well(web)


def test_uploads_share_a_budget(gallery: Gallery) -> None:
    with web_for(gallery.index, all_uploads_bytes=2000) as web:
        answer = web.upload(drawn("BMP", (60, 60)))
        refused(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert (web.service.uploads.used, web.service.network.size) == (0, 0)
        assert web.upload(drawn("PNG", (8, 8))).status_code == 200
        assert web.service.uploads.used == 0


def test_a_full_queue_is_told_at_once(gallery: Gallery, ids: dict[str, str]) -> None:
    item = ids["bird-0.png"]
    with web_for(gallery.index, queue=1) as web:
        with web.service.network.reserve(), web.service.network.reserve():
            answer = web.upload(drawn())
            refused(answer, 503, "busy", "waiting")
            assert answer.headers["retry-after"] == "1"
            web.refuses(503, "search", query=item, box="0,0,1,1")
            assert web.get("/api/search", params={"query": item}).status_code == 200  # needs no network
        assert web.upload(drawn()).status_code == 200


# --- files of the index -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e", "1/../../x", "0x10", "1.5", "1%00", "q../../x", "٣"],
)
def test_ids_are_numbers(web: Web, name: str) -> None:
    for path in ("items/{}", "items/{}/image", "items/{}/thumb", "attention/{}"):
        answer = web.get(f"/api/{path.format(name)}")
        assert answer.status_code in (404, 422), path
        refused(answer, answer.status_code)


@pytest.fixture
def spoiled(gallery: Gallery, tmp_path: Path) -> Iterator[tuple[Web, Path]]:
    """A client of an index whose images a test may replace, and their folder."""
    index, images = copy_gallery(gallery, tmp_path)
    with web_for(index, tmp_path / "cache") as web:
        yield web, images


def test_a_link_put_there_later_is_not_followed(spoiled: tuple[Web, Path], ids: dict[str, str], tmp_path: Path) -> None:
    web, images = spoiled
    secret = tmp_path / "secret.png"
    secret.write_bytes(drawn(seed=123))
    first = ids["bird-0.png"]
    assert web.get(f"/api/items/{first}/thumb").status_code == 200
    (images / "bird-0.png").unlink()
    (images / "bird-0.png").symlink_to(secret)
    for address in ("items/{}/thumb", "items/{}/image", "attention/{}?format=png"):
        web.refuses(403, f"{address.format(first)}", "outside")
    web.refuses(403, "search", "outside", query=first, box="0,0,1,1")
    web.refuses(403, "explain", "outside", query=first, hit=first)
    web.refuses(403, f"attention/{first}", "outside")
    assert web.get("/api/search", params={"query": first}).status_code == 200  # by the stored vector
    # a folder on the way that became a link
    (images / "more").rename(tmp_path / "elsewhere")
    (images / "more").symlink_to(tmp_path / "elsewhere")
    web.refuses(403, f"items/{ids['more/bird 1.png']}/image", "outside")
    # a link that stays inside is a picture like any other
    (images / "bird-0.png").unlink()
    (images / "bird-0.png").symlink_to(images / "bird-2.png")
    assert web.get(f"/api/items/{first}/image").status_code == 200


def test_what_is_there_now_may_be_anything(spoiled: tuple[Web, Path], ids: dict[str, str]) -> None:
    web, images = spoiled
    first, second = ids["bird-0.png"], ids["bird-2.png"]
    kept = web.get(f"/api/items/{first}/thumb").content
    (images / "bird-0.png").unlink()
    assert web.get(f"/api/items/{first}/thumb").content == kept
    web.refuses(404, f"items/{first}/image", "no longer")
    assert web.get(f"/api/attention/{first}").json()["projections"] == []
    (images / "bird-2.png").unlink()
    web.refuses(404, f"items/{second}/thumb", "no longer")
    os.mkfifo(images / "bird-2.png")  # opening it must not wait for a writer
    web.refuses(404, f"items/{second}/thumb", "no longer")
    (images / "bird-2.png").unlink()
    (images / "bird-2.png").mkdir()
    web.refuses(404, f"items/{second}/image", "no longer")
    (images / "bird-2.png").rmdir()
    (images / "bird-2.png").write_text("#!/bin/sh")
    web.refuses(415, f"items/{second}/image", "not a picture")
    assert web.get("/api/search", params={"query": second}).status_code == 200


def test_only_inside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b.png").write_bytes(b"inside")
    (tmp_path / "root-too.png").write_bytes(b"outside")
    stream, status = open_inside(root, "a/b.png")
    with stream:
        assert stream.read() == b"inside"
    assert status.bytes == 6
    for path in ("../root-too.png", str(tmp_path / "root-too.png"), "a/../../root-too.png", ".", "..", "/"):
        with pytest.raises(ImageOutside):
            open_inside(root, path)
    for path in ("nothing.png", "a", "a/b.png/c", "x\0y"):
        with pytest.raises(ImageMissing):
            open_inside(root, path)
    (tmp_path / "link").symlink_to(root)  # the root itself may be reached by a link
    open_inside(tmp_path / "link", "a/b.png")[0].close()


def test_names_that_are_not_text(gallery: Gallery, tmp_path: Path) -> None:
    """A file system takes bytes; JSON does not."""
    index, images = copy_gallery(gallery, tmp_path)
    odd = os.fsdecode(b"caf\xe9 \xf0\x9f\x90\xa6 <img src=x>.png")
    try:
        (images / odd).write_bytes(drawn(seed=50))
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    indexed(index.parent, images)
    with web_for(index, tmp_path / "cache") as web:
        found = web.get("/api/items", params={"text": "caf"}).json()["items"][0]
        assert found["name"] == "caf\\xe9 🐦 <img src=x>.png"
        assert web.get(f"/api/items/{found['id']}/thumb").status_code == 200
        hits = web.search(drawn(seed=50))["hits"]
        assert hits[0]["id"] == found["id"]


# --- pictures that are much work --------------------------------------------------------------------------------------


def test_a_jpeg_of_many_scans(gallery: Gallery) -> None:
    """It would keep the one thread of the network busy for two minutes."""
    with web_for(gallery.index) as web:
        refused(web.upload(scan_bomb(7000, 5000)), 422, "too much work")
        still_well(web)


@pytest.mark.slow
def test_memory_comes_back(gallery: Gallery) -> None:
    """Before, 7000 × 7000 RGBA took a gigabyte, and the server kept it."""
    data = png_bomb(7000)
    with (
        Serving("serve", gallery.index, "--port", "0") as server,
        httpx.Client(base_url=server.url, timeout=120) as web,
    ):
        assert web.post("/api/search", files=form(drawn())).status_code == 200
        before = server.memory
        for _ in range(2):
            assert web.post("/api/search", files=form(data)).status_code == 200
        assert server.memory < before + 150 * 2**20
