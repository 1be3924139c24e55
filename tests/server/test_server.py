"""The API on a real index: what it answers, held against the library itself."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from finesight import __version__
from finesight.explain.contributions import similarity
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.features.preprocess import picture_view
from finesight.features.types import Box, Embedding, View
from finesight.search.build import open_or_create
from finesight.search.engines import open_index
from finesight.server.config import ServerConfig
from finesight.server.image_store import ThumbnailCache
from finesight.server.job import BackgroundJob
from finesight.server.run_server import update_job
from finesight.server.service import SearchService
from serving import client, copied, drawn, form, indexed, refused, service_for, small_encoder


@pytest.fixture(scope="module")
def encoder(place: tuple[Path, Path]) -> Encoder:
    return Encoder.load(place[0].parent)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def ranking(
    encoder: Encoder, query: np.ndarray, images: Path, paths: list[str], pooling: str
) -> list[tuple[str, float]]:
    """Cosines of the query with each file, by the encoder itself, best first."""
    scores = {path: float(unit(encoder.embed(images / path, pooling).numpy()[0]) @ query) for path in paths}
    return sorted(scores.items(), key=lambda pair: -pair[1])


# --- health and items -------------------------------------------------------------------------------------------------


def test_health(web: TestClient, service: SearchService) -> None:
    health = web.get("/api/health").json()
    assert health.pop("index")["kind"] == "exact"
    assert health == {
        "status": "ok",
        "version": __version__,
        "items": 8,
        "spaces": ["rationale-gem", "average"],
        "encoder": {
            "method": "lcr",
            "resolution": 32,
            "pooling": "rationale-gem",
            "fingerprint": service.embedder.fingerprint,
        },
        "progress": None,
        "problem": None,
        "projections": 4,
    }


def test_items_in_pages_and_by_text(web: TestClient) -> None:
    whole = web.get("/api/items").json()
    paths = [item["path"] for item in whole["items"]]
    assert whole["total"] == 8
    assert paths == sorted(paths)
    first = whole["items"][0]
    assert first == {"id": first["id"], "path": "bird-0.png", "name": "bird-0.png", "width": 40, "height": 40}
    named = [item for item in whole["items"] if item["path"].startswith("more/")]
    assert {item["name"] for item in named} == {f"bird {n}.png" for n in (1, 3, 5, 7)}
    for params, total, items in (
        ({"offset": 3, "limit": 2}, 8, whole["items"][3:5]),
        ({"text": "MORE/Bird"}, 4, named),
        ({"offset": 100}, 8, []),
        ({"text": "no such"}, 0, []),
    ):
        assert web.get("/api/items", params=params).json() == {"total": total, "items": items}


def test_one_item(web: TestClient, ids: dict[str, str], place: tuple[Path, Path], encoder: Encoder) -> None:
    item = web.get(f"/api/items/{ids['more/bird 5.png']}").json()
    file = place[1] / "more/bird 5.png"
    view, mask = item.pop("view"), item.pop("mask")
    assert item == {
        "id": ids["more/bird 5.png"],
        "path": "more/bird 5.png",
        "name": "bird 5.png",
        "width": 60,
        "height": 40,
        "bytes": file.stat().st_size,
    }
    assert tuple(view.values()) == pytest.approx(picture_view(file, 32).box)
    assert np.array(mask) == pytest.approx(encoder.attend(file)[0].numpy(), abs=1e-5)
    refused(web.get("/api/items/1"), 404, "no image")


# --- searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["rationale-gem", "average"])
def test_upload_finds_what_the_encoder_says(
    web: TestClient, ids: dict[str, str], place: tuple[Path, Path], encoder: Encoder, tmp_path: Path, by: str
) -> None:
    data = drawn("JPEG", (64, 50), seed=99)
    answer = web.post("/api/search", files=form(data, "a photo.jpg"), data={"k": "5", "by": by}).json()
    (tmp_path / "query.jpg").write_bytes(data)
    query = unit(encoder.embed(tmp_path / "query.jpg", by).numpy()[0])  # type: ignore[arg-type]
    expected = ranking(encoder, query, place[1], list(ids), by)[:5]
    assert answer["by"] == by
    assert [hit["path"] for hit in answer["hits"]] == [path for path, _ in expected]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert all(hit["id"] == ids[hit["path"]] for hit in answer["hits"])
    shown = answer["query"]
    assert (shown["name"], shown["width"], shown["height"]) == ("a photo.jpg", 64, 50)
    assert np.array(shown["mask"]) == pytest.approx(encoder.attend(tmp_path / "query.jpg")[0].numpy(), abs=1e-5)
    assert answer["took"]["embed_ms"] > 0


def test_an_item_is_left_out_of_its_own_hits(web: TestClient, ids: dict[str, str], place: tuple[Path, Path]) -> None:
    answer = web.get("/api/search", params={"query": ids["bird-2.png"], "k": 200}).json()
    assert len(answer["hits"]) == 7
    assert "bird-2.png" not in [hit["path"] for hit in answer["hits"]]
    same = web.post("/api/search", files=form((place[1] / "bird-2.png").read_bytes())).json()
    assert same["hits"][0]["path"] == "bird-2.png"
    assert same["hits"][0]["score"] == pytest.approx(1, abs=1e-6)
    assert [hit["id"] for hit in same["hits"][1:]] == [hit["id"] for hit in answer["hits"]]
    facts = web.get(f"/api/items/{answer['hits'][0]['id']}").json()
    assert {key for key, value in answer["hits"][0].items() if facts.get(key) != value} == {"score"}


def test_an_upload_is_remembered(web: TestClient) -> None:
    first = web.post("/api/search", files=form(drawn(seed=5)), data={"k": "3"}).json()
    name = first["query"]["id"]
    again = web.get("/api/search", params={"query": name, "k": 3}).json()
    assert again["hits"] == first["hits"]
    assert again["query"] == first["query"]
    refused(web.get("/api/search", params={"query": "q" + "0" * 16}), 404, "no longer remembered")


def test_search_by_a_part(
    web: TestClient, ids: dict[str, str], service: SearchService, place: tuple[Path, Path], encoder: Encoder
) -> None:
    box = (0.7, 0.1, 0.25, 0.5)
    text = ",".join(map(str, box))
    path = "more/bird 7.png"  # 68 × 40: the box is not in the middle square
    view = picture_view(place[1] / path, 32, box)
    vector = service.embedder.encode([view], [box])[0].features["average"]
    expected = ranking(encoder, vector, place[1], list(ids), "average")
    by_item = web.get("/api/search", params={"query": ids[path], "box": text, "by": "average"}).json()
    assert [hit["path"] for hit in by_item["hits"]] == [one for one, _ in expected if one != path]
    assert tuple(by_item["query"]["view"].values()) == pytest.approx(view.box)
    uploaded = web.post(
        "/api/search", files=form((place[1] / path).read_bytes()), data={"box": text, "by": "average"}
    ).json()
    assert [hit["path"] for hit in uploaded["hits"]] == [one for one, _ in expected]
    whole = web.get("/api/search", params={"query": uploaded["query"]["id"], "by": "average"}).json()
    assert whole["hits"] != uploaded["hits"]
    assert whole["hits"][0]["score"] == pytest.approx(1, abs=1e-6)


def test_minimum_score_and_diversity(web: TestClient, ids: dict[str, str]) -> None:
    query = {"query": ids["bird-0.png"], "k": 7}
    plain = web.get("/api/search", params=query).json()["hits"]
    least = plain[2]["score"] - 1e-6
    assert web.get("/api/search", params={**query, "min_score": least}).json()["hits"] == plain[:3]
    varied = web.get("/api/search", params={**query, "k": 4, "diversity": 0.9}).json()["hits"]
    assert varied[0] == plain[0]
    assert varied != plain[:4]


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"k": 0}, "k:"),
        ({"k": 201}, "k:"),
        ({"k": "many"}, "k:"),
        ({"by": "nothing"}, "by:"),
        ({"box": "1,2"}, "box:"),
        ({"box": "0.5,0.5,0.6,0.1"}, "not in the picture"),
        ({"box": "nan,0,1,1"}, "box:"),
        ({"box": "0,0,1e999,1"}, "not in the picture"),
        ({"diversity": 1.5}, "diversity:"),
        ({"diversity": "nan"}, "diversity:"),
        ({"min_score": 2}, "min_score:"),
        ({"query": "../../etc/passwd"}, "query:"),
        ({"query": "-1"}, "query:"),
        ({"query": "٣"}, "query:"),  # a digit, yet not one of ours
        ({"query": "12345678901234567"}, "query:"),
    ],
)
def test_wrong_questions(web: TestClient, ids: dict[str, str], params: dict[str, object], word: str) -> None:
    refused(web.get("/api/search", params={"query": ids["bird-0.png"], **params}), 422, word)
    if "query" not in params:
        fields = {key: str(value) for key, value in params.items()}
        refused(web.post("/api/search", files=form(drawn()), data=fields), 422, word)


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_small_and_drawn_anew(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif[0x0112] = 6  # lies on its side
    (images / "large.jpg").write_bytes(drawn("JPEG", (2400, 1200), exif=exif, comment=b"SecretComment"))
    index = indexed(small_encoder(tmp_path / "run"), images)
    with service_for(index, tmp_path / "cache") as service:
        web = client(service)
        name = web.get("/api/items").json()["items"][0]["id"]
        for kind, size in (("thumb", (160, 320)), ("image", (800, 1600))):
            answer = web.get(f"/api/items/{name}/{kind}")
            assert answer.headers["content-type"] == "image/jpeg"
            assert answer.headers["cache-control"] == "private, no-cache"
            assert b"Secret" not in answer.content
            picture = Image.open(io.BytesIO(answer.content))
            assert picture.size == size
            assert not picture.getexif()
            assert "comment" not in picture.info
        upload = web.post("/api/search", files=form((images / "large.jpg").read_bytes())).json()
        assert (upload["query"]["width"], upload["query"]["height"]) == (1200, 2400)
        sent = web.get(f"/api/items/{upload['query']['id']}/thumb").content
        assert Image.open(io.BytesIO(sent)).size == (160, 320)
        assert b"Secret" not in sent
        assert b"Secret" not in web.get(f"/api/attention/{name}?format=png").content


def test_thumbnails_are_kept_and_follow_the_file(place: tuple[Path, Path], tmp_path: Path) -> None:
    index, images = copied(*place, tmp_path)
    with service_for(index, tmp_path / "cache") as service:
        web = client(service)
        name = web.get("/api/items", params={"text": "bird-0"}).json()["items"][0]["id"]
        first = web.get(f"/api/items/{name}/thumb")
        kept = list((tmp_path / "cache" / "thumbs").glob("*/*.jpg"))
        assert [file.read_bytes() for file in kept] == [first.content]
        tag = {"if-none-match": first.headers["etag"]}
        again = web.get(f"/api/items/{name}/thumb", headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        kept[0].write_bytes(drawn("JPEG", (8, 8)))  # what is in the cache is what is sent
        assert web.get(f"/api/items/{name}/thumb").content == kept[0].read_bytes()
        (images / "bird-0.png").write_bytes(drawn(size=(50, 50), seed=77))
        changed = web.get(f"/api/items/{name}/thumb", headers=tag)
        assert changed.status_code == 200
        assert Image.open(io.BytesIO(changed.content)).size == (50, 50)
        shutil.rmtree(tmp_path / "cache")
        assert web.get(f"/api/items/{name}/thumb").status_code == 200


def test_the_thumbnails_have_a_limit(tmp_path: Path) -> None:
    thumbnails = ThumbnailCache(tmp_path, most_bytes=10_000)
    keys = [f"{n:02d}" for n in range(20)]
    for n, key in enumerate(keys):
        thumbnails.add(key, bytes(1000))
        os.utime(tmp_path / key / f"{key}.jpg", ns=(n, n))
    assert all(thumbnails.get(key) == bytes(1000) for key in keys)
    thumbnails.prune()
    assert [thumbnails.get(key) is not None for key in keys] == [False] * 12 + [True] * 8


# --- why --------------------------------------------------------------------------------------------------------------


def test_attention(web: TestClient, ids: dict[str, str]) -> None:
    path = "more/bird 3.png"
    seen = web.get(f"/api/attention/{ids[path]}").json()
    assert seen["mask"] == web.get(f"/api/items/{ids[path]}").json()["mask"]
    strengths = [one["strength"] for one in seen["projections"]]
    assert sorted(one["k"] for one in seen["projections"]) == [0, 1, 2, 3]
    assert strengths == sorted(strengths, reverse=True)
    for one in seen["projections"]:
        cells = np.array(one["map"])
        assert cells.shape == (4, 4)
        assert (cells.min(), cells.max()) == (0, 1)
    png = web.get(f"/api/attention/{ids[path]}", params={"format": "png"})
    assert png.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(png.content)).size == (52, 40)
    refused(web.get(f"/api/attention/{ids[path]}", params={"format": "exe"}), 422, "format:")


@pytest.mark.parametrize("box", [None, "0.1,0.2,0.6,0.5"])
def test_explanation_sums_to_the_score(
    web: TestClient, ids: dict[str, str], place: tuple[Path, Path], encoder: Encoder, box: str | None
) -> None:
    params = {"query": ids["bird-4.png"], **({} if box is None else {"box": box})}
    hit = web.get("/api/search", params=params).json()["hits"][0]
    why = web.get("/api/explain", params={**params, "hit": hit["id"]}).json()
    assert why["score"] == pytest.approx(hit["score"], abs=1e-5)
    for side in ("query", "hit"):
        assert np.sum(why[side]["map"]) == pytest.approx(why["score"], abs=1e-9)
    assert sum(one["share"] for one in why["projections"]) == pytest.approx(why["score"], abs=1e-9)
    region = None if box is None else tuple(map(float, box.split(",")))
    views = picture_view(place[1] / "bird-4.png", 32, region), picture_view(place[1] / hit["path"], 32)
    own = similarity(encoder, *views, "rationale-gem", region)
    assert np.array(why["query"]["map"]) == pytest.approx(own.query_map)
    refused(web.get("/api/explain", params={"query": ids["bird-4.png"], "hit": "5"}), 404)


def test_an_encoder_without_a_rationale(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for n in range(2):
        (images / f"{n}.png").write_bytes(drawn(seed=n))
    index = indexed(small_encoder(tmp_path / "run", rationale=False), images)
    with service_for(index, tmp_path / "cache") as service:
        web = client(service)
        health = web.get("/api/health").json()
        assert (health["spaces"], health["projections"]) == (["average"], 0)
        a, b = (item["id"] for item in web.get("/api/items").json()["items"])
        assert web.get(f"/api/attention/{a}").json()["projections"] == []
        why = web.get("/api/explain", params={"query": a, "hit": b}).json()
        assert why["projections"] == []
        assert np.sum(why["hit"]["map"]) == pytest.approx(why["score"], abs=1e-9)
        refused(web.get("/api/search", params={"query": a, "by": "rationale"}), 422, "average")


# --- clusters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"count": 3}, {"method": "hdbscan"}])
def test_clusters(web: TestClient, ids: dict[str, str], params: dict[str, object]) -> None:
    """Every image is in one cluster or in none; the overview and the pages of a cluster agree."""
    found = web.get("/api/clusters", params=params).json()
    sizes = [cluster["size"] for cluster in found["clusters"]]
    assert found["method"] == params.get("method", "kmeans")
    assert sum(sizes) + found["unclustered"] == 8
    assert sizes == sorted(sizes, reverse=True)
    if "count" in params:
        assert (len(sizes), found["unclustered"]) == (3, 0)
    else:
        assert web.get("/api/clusters", params={**params, "count": 5}).json() == found
    seen = []
    for cluster in found["clusters"]:
        whole = web.get(f"/api/clusters/{cluster['id']}", params=params).json()
        assert (whole["id"], whole["size"]) == (cluster["id"], cluster["size"])
        assert [item["id"] for item in whole["items"]][:12] == cluster["items"]
        part = web.get(f"/api/clusters/{cluster['id']}", params={**params, "offset": 1, "limit": 1}).json()
        assert part["items"] == whole["items"][1:2]
        seen += [item["id"] for item in whole["items"]]
    assert len(seen) == len(set(seen)) == sum(sizes)
    assert set(seen) <= set(ids.values())
    refused(web.get("/api/clusters/99", params=params), 404, "no cluster 99")
    refused(web.get("/api/clusters", params={"method": "magic"}), 422, "method:")


# --- while an index is built, and what is remembered ----------------------------------------------------------------


def test_an_empty_index_that_fills(tmp_path: Path) -> None:
    images, run = tmp_path / "images", small_encoder(tmp_path / "run")
    images.mkdir()
    (images / "a.png").write_bytes(drawn())
    embedder = TorchEmbedder.load(run)
    open_or_create(str(run / "index"), embedder, run, images).close()
    job = update_job(str(run / "index"), embedder, images, run, workers=1, progress=False)
    with service_for(run / "index", tmp_path / "cache", job) as service:
        web = client(service)
        before = web.get("/api/health").json()
        assert (before["status"], before["items"]) == ("building", 0)
        assert before["progress"] == {"phase": "listing", "done": 0, "total": 0}
        assert web.post("/api/search", files=form(drawn())).json()["hits"] == []
        assert web.get("/api/items").json() == {"total": 0, "items": []}
        assert web.get("/api/clusters").json() == {"method": "kmeans", "clusters": [], "unclustered": 0}
        refused(web.get("/api/clusters/0"), 404, "no cluster 0")
        job.start()
        deadline = time.monotonic() + 30
        while job.progress is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        after = web.get("/api/health").json()
        assert (after["status"], after["items"], after["progress"]) == ("ok", 1, None)
        hits = web.post("/api/search", files=form(drawn())).json()["hits"]
        assert [hit["path"] for hit in hits] == ["a.png"]
        assert web.get("/api/items").json()["total"] == 1


def test_a_job_that_fails_is_told(place: tuple[Path, Path], service: SearchService, tmp_path: Path) -> None:
    job = update_job(str(place[0]), service.embedder, tmp_path / "nowhere", place[0].parent, progress=False)
    job.start()
    with service_for(place[0], job=job) as failing:
        assert job.stop(10)
        health = client(failing).get("/api/health").json()
        assert health["status"] == "ok"
        assert "does not exist" in health["problem"]


def test_a_job_stops_when_asked() -> None:
    def work(job: BackgroundJob) -> None:
        while not job.stopping():
            job.report("embedding", 1, 2)
            time.sleep(0.001)

    job = BackgroundJob(work)
    job.start()
    time.sleep(0.01)
    assert job.progress is not None
    assert job.stop(5)
    assert job.progress is None


def test_uploads_that_are_remembered_are_few_and_small(place: tuple[Path, Path]) -> None:
    small, large = drawn("PNG", (8, 8)), drawn("BMP", (60, 60))
    with service_for(place[0], remembered=3, remembered_bytes=len(large)) as service:
        web = client(service)

        def upload(data: bytes) -> str:
            return str(web.post("/api/search", files=form(data)).json()["query"]["id"])

        def kept(*names: str) -> list[bool]:
            return [web.get("/api/search", params={"query": name}).status_code == 200 for name in names]

        a, b, c, d = (upload(small) for _ in range(4))
        assert kept(c, d, b, a) == [True, True, True, False]
        e = upload(small)
        assert kept(c, d, b, e) == [False, True, True, True]  # c was not used for longest
        f = upload(large)
        assert kept(d, b, e, f) == [False, False, False, True]  # alone it may be as large as all together


# --- the page and the documentation -----------------------------------------------------------------------------------


def test_the_page_and_its_headers(web: TestClient) -> None:
    page = web.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "img-src 'self' blob: data:" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    again = web.get("/", headers={"if-none-match": page.headers["etag"]})
    assert again.status_code == 304
    for path in ("/index.htm", "/../server/app.py", "/%2e%2e/server/app.py", "/..%2fserver%2fapp.py", "/api/nothing"):
        refused(web.get(path), 404, "nothing at this address")
    refused(web.post("/"), 405)
    refused(web.delete("/api/health"), 405)
    assert web.head("/api/health").status_code == web.head("/").status_code == 200


def test_the_documentation_needs_nothing_from_elsewhere(web: TestClient) -> None:
    page = web.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]
    for name, kind in (("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")):
        assert f"/docs/{name}" in page.text
        assert web.get(f"/docs/{name}").headers["content-type"].startswith(kind)
    refused(web.get("/docs/%2e%2e%2fcore.py"), 404)


def test_the_document(web: TestClient) -> None:
    document = web.get("/openapi.json").json()
    assert all(path.startswith("/api/") for path in document["paths"])
    fields = document["paths"]["/api/search"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(fields["properties"]) == {"file", "k", "by", "box", "diversity", "min_score"}
    for methods in document["paths"].values():
        for operation in methods.values():
            for status in ("400", "401", "422", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Problem"}


class BrokenEmbedder(TorchEmbedder):
    """Fails at every image."""

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        raise RuntimeError("out of luck")


def test_a_fault_is_a_sentence(place: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    index = open_index(place[0])
    web = client(SearchService(index, BrokenEmbedder.load(place[0].parent), ServerConfig()))
    assert "luck" not in refused(web.post("/api/search", files=form(drawn())), 500, "log")
    assert "out of luck" in caplog.text
    index.close()  # the catalog cannot be read any more
    refused(web.get("/api/items/1"), 503, "log")
    assert web.get("/openapi.json").status_code == 200
