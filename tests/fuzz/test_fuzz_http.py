"""Damaged requests: an answer below 500 in JSON, and a server that goes on. Schemathesis tries well-formed ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import damage, damages, fuzzed, within_bounds
from serving import Gallery, Web, drawn, make_gallery, web_for

BOUNDARY = "b"
BODY = (
    b'--b\r\nContent-Disposition: form-data; name="k"\r\n\r\n5\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    + drawn("JPEG")
    + b"\r\n--b--\r\n"
)
PATHS = ("/api/search", "/api/items", "/api/items/1", "/api/explain", "/api/clusters", "/api/judge", "/", "/docs/x")
HEADERS = st.dictionaries(
    st.sampled_from(["accept", "authorization", "content-length", "content-type", "cookie", "if-none-match", "origin"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30),
    max_size=3,
)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    gallery: Gallery = make_gallery(tmp_path_factory.mktemp("fuzz"), images=4)
    with web_for(gallery.index, tmp_path_factory.mktemp("cache"), upload_seconds=5) as web:
        yield web


def answered(web: Web, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    with within_bounds():
        answer = web.request(method, path, content=body, headers=sent)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert isinstance(answer.json()["detail"], str)
        assert "Traceback" not in answer.text
    return answer.status_code


@fuzzed
@given(changes=damages())
def test_forms(web: Web, changes: list[tuple[str, float, bytes]]) -> None:
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    answered(web, "POST", "/api/search", damage(BODY, changes), kind)
    assert answered(web, "POST", "/api/search", BODY, kind) == 200


@fuzzed
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    path=st.sampled_from(PATHS),
    more=st.text(max_size=12),
    query=st.dictionaries(
        st.sampled_from(["query", "hit", "box", "k", "by", "features", "text"]), st.text(max_size=20)
    ),
    body=st.binary(max_size=50),
    headers=HEADERS,
)
def test_requests(
    web: Web, method: str, path: str, more: str, query: dict[str, str], body: bytes, headers: dict[str, str]
) -> None:
    from urllib.parse import quote, urlencode

    headers.pop("content-length", None)  # the client sets it
    words = urlencode({key: value.encode("utf-8", "surrogatepass") for key, value in query.items()})
    address = f"{path}{quote(more.encode('utf-8', 'surrogatepass'))}?{words}"
    if method == "HEAD":
        assert web.request(method, address).status_code < 500
        return
    answered(web, method, address, body, headers)
