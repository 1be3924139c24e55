"""What the server did and does, in Prometheus' text format at /metrics. Labels take few values, whatever is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finesight.errors import FineSightError
from finesight.version import __version__

if TYPE_CHECKING:
    from finesight.server.service import SearchService

METRICS, HEALTHZ = "/metrics", "/healthz"
METHODS = ("GET", "HEAD", "POST")  # any other word is counted as "other"
PAGE = "/{name:path}"  # the route of the page's files, and of every address that is nothing
REFUSALS = {400: "name", 401: "token", 403: "origin", 408: "slow", 413: "size", 429: "token", 503: "busy"}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        own = self.registry
        by = ("route", "method", "status")
        self._requests = Counter("finesight_requests", "Answers by route, method and status.", by, registry=own)
        self._seconds = Histogram(
            "finesight_request_seconds", "Time until the answer was sent.", ("route",), buckets=SECONDS, registry=own
        )
        self._refused = Counter(
            "finesight_refused", "Requests that were refused, by reason.", ("reason",), registry=own
        )
        self._embedding = Histogram(
            "finesight_embed_seconds", "Time that the network took for a picture.", buckets=SECONDS, registry=own
        )
        for reason in sorted(set(REFUSALS.values())):
            self._refused.labels(reason)  # 0 from the beginning: the first refusal is a change

    def watch(self, service: SearchService) -> None:
        """Add what is read from the service when somebody asks."""
        self.registry.register(_ServiceFacts(service))

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self._requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if status in REFUSALS:
            self._refused.labels(REFUSALS[status]).inc()

    @contextmanager
    def embedding(self) -> Iterator[None]:
        """Time one picture on its way through the network."""
        with self._embedding.time():
            yield

    def text(self) -> bytes:
        """Return all of it."""
        return generate_latest(self.registry)


class _ServiceFacts(Collector):
    """Queues, sizes of indexes, and how far indexing and training are."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the facts as they are now. An index that cannot be reached is left out."""
        service = self._service
        engine = "torch" if hasattr(service.embedder, "encoder") else "onnx"
        yield InfoMetricFamily("finesight", "The server.", {"version": __version__, "engine": engine})
        queues = GaugeMetricFamily("finesight_queue_requests", "Requests that wait or run.", labels=("queue",))
        for name, queue in service.queues().items():
            queues.add_metric((name,), queue.size)
        yield queues
        yield GaugeMetricFamily("finesight_upload_bytes", "Uploads that are held now.", service.uploads.used)
        images = GaugeMetricFamily("finesight_index_images", "Images of the index.", labels=("features",))
        for name in service.features.names():
            with suppress(FineSightError):
                images.add_metric((name,), len(service.features.get(name).index))
        yield images
        progress = service.job.progress if service.job is not None else None
        done, total = (0, 0) if progress is None else (progress.done, progress.total)
        yield GaugeMetricFamily("finesight_indexing", "Whether the index is being brought up to date.", bool(progress))
        yield GaugeMetricFamily("finesight_indexing_done", "Images done of what is being added.", done)
        yield GaugeMetricFamily("finesight_indexing_total", "Images that are being added.", total)
        if service.upkeep is not None:
            training = service.upkeep.training()
            is_running = training.state == "running"
            yield GaugeMetricFamily("finesight_training_running", "Whether training runs now.", is_running)
            failed = training.state == "failed"
            yield GaugeMetricFamily("finesight_training_failed", "Whether the last training failed.", failed)
            yield GaugeMetricFamily("finesight_training_step", "Step of the training.", training.step)
            yield GaugeMetricFamily("finesight_training_steps", "Steps that it will take.", training.total)
            if training.loss is not None:
                yield GaugeMetricFamily("finesight_training_loss", "Loss of the training.", training.loss)


class CountRequests:
    """Count every answer, also those of the guard (ASGI middleware; it must be the outermost)."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self._app, self._metrics = app, metrics
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            self._metrics.count(self._route(scope), scope["method"], status, time.perf_counter() - began)

    def _route(self, scope: Scope) -> str:
        """Return the pattern of the route that a request belongs to, never its address: those have no end."""
        found = next((route.path for route in self._routes if route.matches(scope)[0] != Match.NONE), PAGE)
        return "page" if found == PAGE else found


async def answer_metrics(request: Request) -> Response:
    """Answer /metrics."""
    service: SearchService = request.app.state.service
    text = await service.measuring.run(request, service.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def answer_healthz(request: Request) -> Response:
    """Answer /healthz: whether the server answers. It looks at nothing and waits for nothing; /api/health does."""
    return JSONResponse({"status": "ok"})
