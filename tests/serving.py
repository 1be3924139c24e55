"""A server with a real index of a few drawn pictures and a network of a few thousand random weights."""

from __future__ import annotations

import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from finesight.features.embedder import TorchEmbedder
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from finesight.server.app import create_app
from finesight.server.config import ServerConfig
from finesight.server.job import BackgroundJob
from finesight.server.judge_desk import JudgeRoom
from finesight.server.run_server import SearchServer, bind, browser_address
from finesight.server.service import SearchService
from indexes import small_encoder
from processes import Command

BASE = "http://127.0.0.1:8000"


def indexed(run: Path, images: Path | str) -> Path:
    """``run`` with an index of ``images``, as ``finesight index`` leaves it."""
    engine = TorchEmbedder.load(run)
    index = open_or_create(str(run / "index"), engine, run, images)
    update_index(index, engine, images, workers=1)
    index.close()
    return run / "index"


class Gallery(NamedTuple):
    """An index and the folder of its images."""

    index: Path
    images: Path


class Web(TestClient):
    """Talk to the app of a service without a network. Redirections are not followed."""

    def __init__(self, service: SearchService) -> None:
        super().__init__(create_app(service), base_url=BASE, follow_redirects=False)
        self.service = service

    def ask(self, path: str, **params: Any) -> Any:
        """Return the JSON at /api/PATH."""
        return self.get(f"/api/{path}", params=params).json()

    def search(self, data: bytes, **fields: Any) -> Any:
        """Return the JSON of a search by an upload."""
        return self.upload(data, **fields).json()

    def upload(self, data: bytes, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return self.post("/api/search", files=form(data), data=fields, headers=headers)

    def refuses(self, status: int, path: str, *words: str, **params: Any) -> None:
        """Check that /api/PATH is that error, in a sentence with these words."""
        refused(self.get(f"/api/{path}", params=params), status, *words)


@contextmanager
def web_for(index: Path, cache: Path | None = None, job: BackgroundJob | None = None, **config: Any) -> Iterator[Web]:
    """Yield a client of a new service; ``config`` are settings of ``ServerConfig``."""
    settings = ServerConfig(cache_dir=cache, **config)
    service = SearchService(open_index(index), TorchEmbedder.load(index.parent), settings, job)
    try:
        yield Web(service)
    finally:
        service.close(5)


@contextmanager
def in_thread(service: SearchService | JudgeRoom) -> Iterator[tuple[str, SearchServer]]:
    """Serve as ``finesight serve`` does, on a free port of this process. Yield the address and the server."""
    ready = threading.Event()
    server = SearchServer(service, ready.set)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        try:
            assert ready.wait(120)
            yield browser_address(bound, "127.0.0.1"), server
        finally:
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive()


def refused(answer: httpx.Response, status: int, *words: str) -> str:
    """The sentence of an answer that must be that error, in JSON, and nothing of the server's inside."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    detail = answer.json()
    assert list(detail) == ["detail"]
    sentence = detail["detail"]
    assert isinstance(sentence, str)
    assert sentence.endswith(".")
    assert "Traceback" not in sentence
    for word in words:
        assert word in sentence, sentence
    return sentence


def drawn(kind: str = "PNG", size: tuple[int, int] = (48, 36), seed: int = 0, **options: Any) -> bytes:
    """A smooth random picture as a file of that kind."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, kind, **options)
    return buffer.getvalue()


def form(data: bytes, name: str = "query.png", kind: str = "image/png") -> dict[str, tuple[str, bytes, str]]:
    return {"file": (name, data, kind)}


class Serving(Command):
    """``finesight serve …`` (or ``up``) in a process of its own."""

    def said(self) -> str:
        return Path(self._out).read_text()

    @cached_property
    def url(self) -> str:
        """Its address, as soon as it answers."""
        self.until(lambda: "FineSight is at " in self.said() and self.said().endswith("\n"))
        return self.said().split("FineSight is at ")[1].split()[0]

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, float, str]:
        """Exit code, seconds it took, and what it had said on standard error."""
        start = time.monotonic()
        self.send(number)
        done = self.wait()
        return done.code, time.monotonic() - start, done.err

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    @property
    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        if self.running:
            self.process.kill()
            self.wait()


def make_gallery(folder: Path, images: int = 8) -> Gallery:
    """Return a new index of drawn pictures of several shapes."""
    (folder / "images" / "more").mkdir(parents=True)
    for number in range(images):
        name = f"more/bird {number}.png" if number % 2 else f"bird-{number}.png"
        (folder / "images" / name).write_bytes(drawn(size=(40 + 4 * number, 40), seed=number))
    return Gallery(indexed(small_encoder(folder / "run"), folder / "images"), folder / "images")


def copy_gallery(gallery: Gallery, to: Path) -> Gallery:
    """Return a copy that a test may spoil."""
    shutil.copytree(gallery.index.parent, to / "run")
    shutil.copytree(gallery.images, to / "images")
    meta = to / "run" / "index" / "index.json"
    meta.write_text(meta.read_text().replace(str(gallery.images), str(to / "images")))
    return Gallery(meta.parent, to / "images")
