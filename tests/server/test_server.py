"""The API on a real index: its answers are compared with the library itself."""

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

from finesight import __version__
from finesight.explain.contributions import similarity
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.features.preprocess import picture_view
from finesight.features.types import Box, Embedding, View
from finesight.search.build import open_or_create
from finesight.search.engines import open_index
from finesight.server.image_store import ThumbnailCache
from finesight.server.job import BackgroundJob
from finesight.server.run_server import update_job
from finesight.server.service import SearchService
from indexes import small_encoder
from serving import Gallery, Web, copy_gallery, drawn, indexed, refused, web_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(gallery: Gallery) -> Encoder:
    return Encoder.load(gallery.index.parent)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def paths_of(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [hit["path"] for hit in answer["hits"]]


def ranking(encoder: Encoder, query: np.ndarray, gallery: Gallery, pooling: str) -> dict[str, float]:
    """The cosine of the query with each file, by the encoder itself, best first."""
    files = {str(file.relative_to(gallery.images)): file for file in gallery.images.rglob("*.png")}
    scores = {path: float(unit(encoder.embed(file, pooling).numpy()[0]) @ query) for path, file in files.items()}
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


# --- health and items -------------------------------------------------------------------------------------------------


def test_health(web: Web) -> None:
    health = web.ask("health")
    assert health.pop("index")["kind"] == "exact"
    fingerprint = web.service.embedder.fingerprint
    own = {
        "items": 8,
        "spaces": ["rationale-gem", "average"],
        "encoder": {"method": "lcr", "resolution": 32, "pooling": "rationale-gem", "fingerprint": fingerprint},
        "projections": 4,
    }
    assert health == {
        **own,
        "status": "ok",
        "version": __version__,
        "progress": None,
        "problem": None,
        "words": False,
        "default_features": "after",
        "features": [{"name": "after", **own}],
        "training": None,
        "verdict": None,
    }
    web.refuses(404, "training", "trains nothing")
    web.refuses(404, "clusters", "no features of before training", features="before")


def test_items_in_pages_and_by_text(web: Web) -> None:
    items = web.ask("items")["items"]
    paths = [item["path"] for item in items]
    assert paths == sorted(paths)
    first = {"id": items[0]["id"], "path": "bird-0.png", "name": "bird-0.png", "width": 40, "height": 40}
    assert items[0] == {**first, "label": "", "tags": []}
    below = [item for item in items if item["path"].startswith("more/")]
    assert {item["name"] for item in below} == {f"bird {n}.png" for n in (1, 3, 5, 7)}
    assert web.ask("items") == {"total": 8, "items": items}
    assert web.ask("items", offset=3, limit=2) == {"total": 8, "items": items[3:5]}
    assert web.ask("items", text="MORE/Bird") == {"total": 4, "items": below}
    assert web.ask("items", offset=100) == {"total": 8, "items": []}
    assert web.ask("items", text="no such") == {"total": 0, "items": []}


def test_one_item(web: Web, ids: dict[str, str], gallery: Gallery, encoder: Encoder) -> None:
    path = "more/bird 5.png"
    item, file = web.ask(f"items/{ids[path]}"), gallery.images / path
    assert tuple(item.pop("view").values()) == pytest.approx(picture_view(file, 32).box)
    assert np.array(item.pop("mask")) == pytest.approx(encoder.attend(file)[0].numpy(), abs=1e-5)
    size = {"width": 60, "height": 40, "bytes": file.stat().st_size}
    assert item.pop("camera") == {"taken": None, "camera": None, "latitude": None, "longitude": None}  # drawn
    assert item == {"id": ids[path], "path": path, "name": "bird 5.png", **size, "label": "", "tags": []}
    web.refuses(404, "items/1", "no image")


# --- searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["rationale-gem", "average"])
def test_upload_finds_what_the_encoder_says(
    web: Web, ids: dict[str, str], gallery: Gallery, encoder: Encoder, tmp_path: Path, by: str
) -> None:
    file = tmp_path / "query.jpg"
    file.write_bytes(drawn("JPEG", (64, 50), seed=99))
    answer = web.search(file.read_bytes(), k=5, by=by)
    expected = ranking(encoder, unit(encoder.embed(file, by).numpy()[0]), gallery, by)
    assert answer["by"] == by
    assert paths_of(answer) == list(expected)[:5]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(list(expected.values())[:5], abs=1e-5)
    assert all(hit["id"] == ids[hit["path"]] for hit in answer["hits"])
    shown = answer["query"]
    assert (shown["name"], shown["width"], shown["height"]) == ("query.png", 64, 50)
    assert np.array(shown["mask"]) == pytest.approx(encoder.attend(file)[0].numpy(), abs=1e-5)
    assert answer["took"]["embed_ms"] > 0


def test_an_item_is_left_out_of_its_own_hits(web: Web, ids: dict[str, str], gallery: Gallery) -> None:
    answer = web.ask("search", query=ids["bird-2.png"], k=200)
    assert len(answer["hits"]) == 7
    same = web.search((gallery.images / "bird-2.png").read_bytes())
    assert paths_of(same) == ["bird-2.png", *paths_of(answer)]
    assert same["hits"][0]["score"] == pytest.approx(1, abs=1e-6)
    facts = web.ask(f"items/{answer['hits'][0]['id']}")
    assert {key for key, value in answer["hits"][0].items() if facts.get(key) != value} == {"score"}


def test_an_upload_is_remembered(web: Web) -> None:
    first = web.search(drawn(seed=5), k=3)
    again = web.ask("search", query=first["query"]["id"], k=3)
    assert (again["hits"], again["query"]) == (first["hits"], first["query"])
    web.refuses(404, "search", "no longer remembered", query="q" + "0" * 16)


def test_search_by_a_part(web: Web, ids: dict[str, str], gallery: Gallery, encoder: Encoder) -> None:
    box = (0.7, 0.1, 0.25, 0.5)
    options = {"box": ",".join(map(str, box)), "by": "average"}
    path = "more/bird 7.png"  # 68 × 40: the box is not in the middle square
    view = picture_view(gallery.images / path, 32, box)
    vector = web.service.embedder.encode([view], [box])[0].features["average"]
    expected = list(ranking(encoder, vector, gallery, "average"))
    by_item = web.ask("search", query=ids[path], **options)
    assert paths_of(by_item) == [one for one in expected if one != path]
    assert tuple(by_item["query"]["view"].values()) == pytest.approx(view.box)
    uploaded = web.search((gallery.images / path).read_bytes(), **options)
    assert paths_of(uploaded) == expected
    whole = web.ask("search", query=uploaded["query"]["id"], by="average")
    assert whole["hits"] != uploaded["hits"]
    assert whole["hits"][0]["score"] == pytest.approx(1, abs=1e-6)


def test_minimum_score_and_diversity(web: Web, ids: dict[str, str]) -> None:
    query = ids["bird-0.png"]
    plain = web.ask("search", query=query, k=7)["hits"]
    assert web.ask("search", query=query, k=7, min_score=plain[2]["score"] - 1e-6)["hits"] == plain[:3]
    varied = web.ask("search", query=query, k=4, diversity=0.9)["hits"]
    assert varied[0] == plain[0]
    assert varied != plain[:4]


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        *(("k", value, "k:") for value in (0, 201, "many")),
        ("by", "nothing", "by:"),
        *(("box", value, "box:") for value in ("1,2", "nan,0,1,1")),
        *(("box", value, "not in the picture") for value in ("0.5,0.5,0.6,0.1", "0,0,1e999,1")),
        *(("diversity", value, "diversity:") for value in (1.5, "nan")),
        ("min_score", 2, "min_score:"),
        *(("query", value, "query:") for value in ("../../etc/passwd", "-1", "٣", "12345678901234567")),
    ],
)
def test_wrong_questions(web: Web, ids: dict[str, str], name: str, value: object, word: str) -> None:
    web.refuses(422, "search", word, **{"query": ids["bird-0.png"], name: value})
    if name != "query":
        refused(web.upload(drawn(), **{name: str(value)}), 422, word)


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_small_and_drawn_anew(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif[0x0112] = 6  # lies on its side
    large = drawn("JPEG", (2400, 1200), exif=exif, comment=b"SecretComment")
    (images / "large.jpg").write_bytes(large)
    with web_for(indexed(small_encoder(tmp_path / "run"), images), tmp_path / "cache") as web:
        item = web.ask("items")["items"][0]["id"]
        query = web.search(large)["query"]
        assert (query["width"], query["height"]) == (1200, 2400)
        for path, size in (
            (f"items/{item}/thumb", (160, 320)),
            (f"items/{item}/image", (800, 1600)),
            (f"items/{query['id']}/thumb", (160, 320)),
            (f"attention/{item}?format=png", (400, 800)),
        ):
            answer = web.get(f"/api/{path}")
            assert answer.headers["content-type"] == ("image/png" if "png" in path else "image/jpeg")
            assert answer.headers["cache-control"] == "private, no-cache"
            assert b"Secret" not in answer.content
            picture = Image.open(io.BytesIO(answer.content))
            assert picture.size == size
            assert not picture.getexif()
            assert "comment" not in picture.info


def test_thumbnails_are_kept_and_follow_the_file(gallery: Gallery, ids: dict[str, str], tmp_path: Path) -> None:
    index, images = copy_gallery(gallery, tmp_path)
    address = f"/api/items/{ids['bird-0.png']}/thumb"
    with web_for(index, tmp_path / "cache") as web:
        first = web.get(address)
        kept = list((tmp_path / "cache" / "thumbs").glob("*/*.jpg"))
        assert [file.read_bytes() for file in kept] == [first.content]
        tag = {"if-none-match": first.headers["etag"]}
        again = web.get(address, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        kept[0].write_bytes(drawn("JPEG", (8, 8)))  # what is in the cache is what is sent
        assert web.get(address).content == kept[0].read_bytes()
        (images / "bird-0.png").write_bytes(drawn(size=(50, 50), seed=77))
        assert Image.open(io.BytesIO(web.get(address, headers=tag).content)).size == (50, 50)
        shutil.rmtree(tmp_path / "cache" / "thumbs")  # all of "cache" is also written to in the background
        assert web.get(address).status_code == 200


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


def test_attention(web: Web, ids: dict[str, str]) -> None:
    item = ids["more/bird 3.png"]
    seen = web.ask(f"attention/{item}")
    assert seen["mask"] == web.ask(f"items/{item}")["mask"]
    strengths = [one["strength"] for one in seen["projections"]]
    assert sorted(one["k"] for one in seen["projections"]) == [0, 1, 2, 3]
    assert strengths == sorted(strengths, reverse=True)
    for one in seen["projections"]:
        cells = np.array(one["map"])
        assert (cells.shape, cells.min(), cells.max()) == ((4, 4), 0, 1)
    png = web.get(f"/api/attention/{item}", params={"format": "png"})
    assert Image.open(io.BytesIO(png.content)).size == (52, 40)
    web.refuses(422, f"attention/{item}", "format:", format="exe")


@pytest.mark.parametrize("region", [None, (0.1, 0.2, 0.6, 0.5)])
def test_explanation_sums_to_the_score(
    web: Web, ids: dict[str, str], gallery: Gallery, encoder: Encoder, region: Box | None
) -> None:
    params = {"query": ids["bird-4.png"], **({"box": ",".join(map(str, region))} if region else {})}
    hit = web.ask("search", **params)["hits"][0]
    why = web.ask("explain", hit=hit["id"], **params)
    assert why["score"] == pytest.approx(hit["score"], abs=1e-5)
    shares = sum(one["share"] for one in why["projections"])
    for total in (shares, np.sum(why["query"]["map"]), np.sum(why["hit"]["map"])):
        assert total == pytest.approx(why["score"], abs=1e-9)
    views = picture_view(gallery.images / "bird-4.png", 32, region), picture_view(gallery.images / hit["path"], 32)
    own = similarity(encoder, *views, "rationale-gem", region)
    assert np.array(why["query"]["map"]) == pytest.approx(own.query_map)
    web.refuses(404, "explain", query=ids["bird-4.png"], hit="5")


def test_an_encoder_without_a_rationale(gallery: Gallery, tmp_path: Path) -> None:
    index = indexed(small_encoder(tmp_path / "run", "average"), gallery.images)
    with web_for(index, tmp_path / "cache") as web:
        health = web.ask("health")
        assert (health["spaces"], health["projections"]) == (["average"], 0)
        a, b = (item["id"] for item in web.ask("items", limit=2)["items"])
        assert web.ask(f"attention/{a}")["projections"] == []
        why = web.ask("explain", query=a, hit=b)
        assert why["projections"] == []
        assert np.sum(why["hit"]["map"]) == pytest.approx(why["score"], abs=1e-9)
        web.refuses(422, "search", "average", query=a, by="rationale")


# --- clusters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"count": 3}, {"method": "hdbscan"}])
def test_clusters(web: Web, ids: dict[str, str], params: dict[str, object]) -> None:
    """Every image is in one cluster or in none; the overview and the pages of a cluster agree."""
    found = web.ask("clusters", **params)
    sizes = [cluster["size"] for cluster in found["clusters"]]
    assert found["method"] == params.get("method", "kmeans")
    assert sum(sizes) + found["unclustered"] == 8
    assert sizes == sorted(sizes, reverse=True)
    if "count" in params:
        assert (len(sizes), found["unclustered"]) == (3, 0)
    else:
        assert web.ask("clusters", **params, count=5) == found
    seen = []
    for cluster in found["clusters"]:
        whole = web.ask(f"clusters/{cluster['id']}", **params)
        assert (whole["id"], whole["size"]) == (cluster["id"], cluster["size"])
        assert [item["id"] for item in whole["items"]][:12] == cluster["items"]
        assert web.ask(f"clusters/{cluster['id']}", **params, offset=1, limit=1)["items"] == whole["items"][1:2]
        seen += [item["id"] for item in whole["items"]]
    assert len(seen) == len(set(seen)) == sum(sizes)
    assert set(seen) <= set(ids.values())
    web.refuses(404, "clusters/99", "no cluster 99", **params)
    web.refuses(422, "clusters", "method:", method="magic")


# --- while an index is built, and what is remembered ------------------------------------------------------------------


def test_an_empty_index_that_fills(tmp_path: Path) -> None:
    images, run = tmp_path / "images", small_encoder(tmp_path / "run")
    images.mkdir()
    (images / "a.png").write_bytes(drawn())
    embedder = TorchEmbedder.load(run)
    open_or_create(str(run / "index"), embedder, run, images).close()
    job = update_job(str(run / "index"), embedder, images, run, workers=1, progress=False)
    with web_for(run / "index", tmp_path / "cache", job) as web:
        before = web.ask("health")
        assert (before["status"], before["items"]) == ("building", 0)
        assert before["progress"] == {"phase": "listing", "done": 0, "total": 0}
        assert web.search(drawn())["hits"] == []
        assert web.ask("items") == {"total": 0, "items": []}
        assert web.ask("clusters") == {"method": "kmeans", "clusters": [], "unclustered": 0}
        web.refuses(404, "clusters/0", "no cluster 0")
        job.start()
        deadline = time.monotonic() + 120
        while job.progress is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        after = web.ask("health")
        assert (after["status"], after["items"], after["progress"]) == ("ok", 1, None)
        assert paths_of(web.search(drawn())) == ["a.png"]
        assert web.ask("items")["total"] == 1


def test_a_job_that_fails_is_told(gallery: Gallery, web: Web, tmp_path: Path) -> None:
    job = update_job(str(gallery.index), web.service.embedder, tmp_path / "nowhere", tmp_path, progress=False)
    job.start()
    with web_for(gallery.index, job=job) as failing:
        assert job.stop(60)
        health = failing.ask("health")
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
    assert job.stop(60)
    assert job.progress is None


def test_uploads_that_are_remembered_are_few_and_small(gallery: Gallery) -> None:
    small, large = drawn("PNG", (8, 8)), drawn("BMP", (60, 60))
    with web_for(gallery.index, remembered=3, remembered_bytes=len(large)) as web:

        def upload(data: bytes) -> str:
            return str(web.search(data)["query"]["id"])

        def kept(*names: str) -> list[bool]:
            return ["hits" in web.ask("search", query=name) for name in names]

        a, b, c, d = (upload(small) for _ in range(4))
        assert kept(c, d, b, a) == [True, True, True, False]
        e = upload(small)
        assert kept(c, d, b, e) == [False, True, True, True]  # c was not used for longest
        f = upload(large)
        assert kept(d, b, e, f) == [False, False, False, True]  # alone it may be as large as all together


# --- the page and the documentation -----------------------------------------------------------------------------------


def test_the_page_and_its_headers(web: Web) -> None:
    page = web.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "img-src 'self' blob: data:" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    assert web.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    for path in ("/index.htm", "/../server/app.py", "/%2e%2e/server/app.py", "/..%2fserver%2fapp.py", "/api/nothing"):
        refused(web.get(path), 404, "nothing at this address")
    refused(web.post("/"), 405)
    refused(web.delete("/api/health"), 405)
    assert web.head("/api/health").status_code == web.head("/").status_code == 200


def test_the_documentation_needs_nothing_from_elsewhere(web: Web) -> None:
    page = web.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]
    for name, kind in (("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")):
        assert f'"docs/{name}"' in page.text or f"'docs/{name}'" in page.text  # also below /i/NAME/
        assert web.get(f"/docs/{name}").headers["content-type"].startswith(kind)
    refused(web.get("/docs/%2e%2e%2fcore.py"), 404)


def test_the_document(web: Web) -> None:
    document = web.get("/openapi.json").json()
    assert all(path.startswith("/api/") for path in document["paths"])
    fields = document["paths"]["/api/search"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(fields["properties"]) == {
        *("file", "k", "by", "features", "box", "diversity", "min_score"),
        *("text", "folder", "label", "labeled", "tag", "since", "until", "camera"),
    }
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        for status in ("400", "401", "422", "503"):
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}


class BrokenEmbedder(TorchEmbedder):
    """Fails at every image."""

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        raise RuntimeError("out of luck")


def test_a_fault_is_a_sentence(gallery: Gallery, caplog: pytest.LogCaptureFixture) -> None:
    index = open_index(gallery.index)
    web = Web(SearchService(index, BrokenEmbedder.load(gallery.index.parent)))
    assert "luck" not in refused(web.upload(drawn()), 500, "log")
    assert "out of luck" in caplog.text
    index.close()  # the catalog cannot be read any more
    web.refuses(503, "items/1", "log")
    assert web.get("/openapi.json").status_code == 200


def test_camera_data_is_told_to_this_machine_alone(gallery: Gallery, tmp_path: Path) -> None:
    for host, option, shown in (("127.0.0.1", None, True), ("0.0.0.0", None, False), ("0.0.0.0", True, True)):
        with web_for(gallery.index, tmp_path, host=host, camera_data=option) as web:
            assert web.ask("camera")["shown"] is shown
            item = web.ask("items")["items"][0]["id"]
            assert (web.ask(f"items/{item}")["camera"] is not None) is shown
