"""/metrics and /healthz: what Prometheus and a container ask a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from finesight.features.embedder import TorchEmbedder
from finesight.features.types import Box, Embedding, View
from finesight.search.engines import open_index
from finesight.server import schemas
from finesight.server.app import create_several_app
from finesight.server.config import ServerConfig
from finesight.server.feature_sets import FeatureSets
from finesight.server.job import TrainingJob
from finesight.server.service import SearchService
from finesight.server.several import SeveralServices
from serving import BASE, Gallery, Web, drawn, form, refused, web_for

TOKEN = "a-word-nobody-guesses"
Key = tuple[str, tuple[tuple[str, str], ...]]


def metrics(web: Web, **headers: str) -> dict[Key, float]:
    """Every sample by name and labels, read as Prometheus reads it."""
    answer = web.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def key(name: str, **labels: str) -> Key:
    return name, tuple(sorted(labels.items()))


@pytest.fixture
def own(gallery: Gallery, tmp_path: Path) -> Iterator[Web]:
    """A server that nobody asked anything yet."""
    with web_for(gallery.index, tmp_path, upload_bytes=200_000) as web:
        yield web


def test_requests_are_counted_by_route(own: Web) -> None:
    item = own.ask("items")["items"][0]["id"]
    own.search(drawn())
    own.get(f"/api/items/{item}")
    own.head("/api/health")
    own.get("/api/items/77777")
    found = metrics(own)
    assert found[key("finesight_requests_total", route="/api/search", method="POST", status="200")] == 1
    assert found[key("finesight_requests_total", route="/api/items/{item}", method="GET", status="200")] == 1
    assert found[key("finesight_requests_total", route="/api/items/{item}", method="GET", status="404")] == 1
    assert found[key("finesight_requests_total", route="/api/health", method="HEAD", status="200")] == 1
    assert found[key("finesight_request_seconds_count", route="/api/search")] == 1
    assert found[key("finesight_request_seconds_sum", route="/api/search")] > 0
    assert found[key("finesight_embed_seconds_count")] == 1  # the upload; all else was known
    assert found[key("finesight_index_images", features="after")] == 8
    assert found[key("finesight_info", version=own.ask("health")["version"], engine="torch")] == 1
    assert found[key("finesight_indexing")] == 0
    assert key("finesight_training_running") not in found  # only `finesight up` trains
    assert found[key("process_resident_memory_bytes")] > 1e6
    own.get("/api/search", params={"query": item, "box": "0.1,0.1,0.5,0.5"})
    assert metrics(own)[key("finesight_embed_seconds_count")] == 2


def test_whatever_is_asked_there_are_few_labels(own: Web) -> None:
    def labels() -> set[Key]:
        return {one for one in metrics(own) if one[0] == "finesight_requests_total"}

    own.get("/nothing")
    own.request("FIRST", "/api/items")
    metrics(own)
    before = labels()
    for number in range(30):
        own.get(f"/nothing/{number}")
        own.get(f"/api/items/{number}/thumb/{number}")
        own.request(f"WORD{number}", "/api/items")
    assert labels() == before
    assert key("finesight_requests_total", route="page", method="GET", status="404") in before
    assert key("finesight_requests_total", route="/api/items", method="other", status="405") in before


def test_refusals_are_counted(gallery: Gallery, tmp_path: Path) -> None:
    with web_for(gallery.index, tmp_path, token=TOKEN, upload_bytes=2_000) as web:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert metrics(web, **bearer)[key("finesight_refused_total", reason="token")] == 0
        refused(web.get("/api/health"), 401)
        refused(web.get("/api/health", headers={**bearer, "host": "evil.example"}), 400)
        refused(web.post("/api/search", files=form(b"x" * 5_000), headers=bearer), 413)
        found = metrics(web, **bearer)
        for reason in ("token", "name", "size"):
            assert found[key("finesight_refused_total", reason=reason)] == 1, reason
        assert found[key("finesight_refused_total", reason="busy")] == 0


class Waiting(TorchEmbedder):
    """A network that waits until it may go on."""

    gate = threading.Event()

    def encode(self, views: list[View], regions: list[Box | None] | None = None) -> list[Embedding]:  # type: ignore[override]
        assert self.gate.wait(120)
        return super().encode(views, regions)


def test_queues_are_seen_while_they_are_full(gallery: Gallery, tmp_path: Path) -> None:
    config = ServerConfig(cache_dir=tmp_path, queue=1)
    service = SearchService(open_index(gallery.index), Waiting.load(gallery.index.parent), config)
    with Web(service) as web:
        threads = [threading.Thread(target=web.upload, args=(drawn(seed=seed),)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            while metrics(web)[key("finesight_queue_requests", queue="network")] < 2:
                assert any(thread.is_alive() for thread in threads)
            refused(web.upload(drawn(seed=3)), 503, "busy")
            assert web.get("/healthz").status_code == 200
            assert metrics(web)[key("finesight_refused_total", reason="busy")] == 1
        finally:
            Waiting.gate.set()
            for thread in threads:
                thread.join(120)
        assert metrics(web)[key("finesight_queue_requests", queue="network")] == 0
        service.close(5)


def test_metrics_are_behind_the_token_unless_they_are_opened(gallery: Gallery) -> None:
    with web_for(gallery.index, token=TOKEN) as web:
        refused(web.get("/metrics"), 401, "token")
        refused(web.get("/metrics", headers={"authorization": "Bearer wrong"}), 401)
        assert web.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert web.get("/healthz").json() == {"status": "ok"}  # it tells nothing
    with web_for(gallery.index, token=TOKEN, metrics_open=True) as web:
        assert web.get("/metrics").status_code == 200
        refused(web.get("/metrics/"), 401)
        refused(web.get("/api/health"), 401)
        refused(web.get("/metrics", headers={"host": "evil.example"}), 400)
        assert "Set-Cookie" not in web.get("/metrics").headers


def test_several_indexes_have_numbers_of_their_own(gallery: Gallery) -> None:
    for is_open in (False, True):
        config = ServerConfig(token=TOKEN, metrics_open=is_open)
        embedder = TorchEmbedder.load(gallery.index.parent)
        services = {name: SearchService(open_index(gallery.index), embedder, config) for name in ("a", "b-2")}
        several = SeveralServices(services, config)
        with TestClient(create_several_app(several), base_url=BASE) as web:
            bearer = {"authorization": f"Bearer {TOKEN}"}
            web.get("/i/a/api/items", headers=bearer)
            one, two = (web.get(f"/i/{name}/metrics", headers=bearer).text for name in services)
            asked = 'finesight_requests_total{method="GET",route="/api/items",status="200"} 1.0'
            assert asked in one
            assert asked not in two
            assert web.get("/healthz").status_code == 200
            assert web.get("/i/a/metrics").status_code == (200 if is_open else 401)
            refused(web.get("/i/a/api/items"), 401)
            refused(web.get("/i/a/b/metrics"), 401)
        several.close(5)


class Training(TrainingJob):
    """A training that is at its fifth step."""

    judged = None

    def attach(self, features: FeatureSets) -> None: ...

    def training(self) -> schemas.Training:
        return schemas.Training(state="running", words="Training", step=5, total=20, loss=1.5)

    def request_training(self) -> schemas.Training:
        return self.training()

    def verdict(self) -> None: ...


def test_the_progress_of_training_and_indexing(gallery: Gallery, tmp_path: Path) -> None:
    job = Training(lambda job: None)
    job.report("embedding", 3, 12)
    with web_for(gallery.index, tmp_path, job) as web:
        found = metrics(web)
    assert found[key("finesight_training_running")] == 1
    assert (found[key("finesight_training_step")], found[key("finesight_training_steps")]) == (5, 20)
    assert found[key("finesight_training_loss")] == 1.5
    assert found[key("finesight_indexing")] == 1
    assert (found[key("finesight_indexing_done")], found[key("finesight_indexing_total")]) == (3, 12)
