"""What is particular about the Milvus index, in a Milvus Lite file: pages, graphs, encoders, addresses, servers."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import fingerprint
from finesight.search.build import open_or_create
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.open_embedder import open_embedder
from indexes import SPACES, batch, meta, small_encoder, units
from reference.nearest import nearest

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
from finesight.search.milvus_client import Address, connections
from finesight.search.milvus_index import MilvusIndex, MilvusLimits

pytestmark = pytest.mark.slow


def test_a_graph_and_small_pages(tmp_path: Path) -> None:
    """A graph instead of exact search, as in a server: its recall is measured, and many pages hold everything."""
    vectors = units(600, clusters=15)
    limits = MilvusLimits(page_rows=100)
    index = MilvusIndex.create(str(tmp_path / "graph.db"), meta(), tmp_path, kind="HNSW", limits=limits)
    index.add(batch(list(range(1, 601)), vectors))
    index.finish()
    facts = index.facts()
    assert facts["kind"] == "hnsw"
    assert facts["recall_queries"] == 300
    assert facts["recall_at_10"] >= 0.97
    assert facts["place"] == str(tmp_path / "graph.db")
    found = index.search(vectors[:3], 10, SPACES[0])[1]
    exact = [nearest(vector, vectors, list(range(1, 601)), 10)[1] for vector in vectors[:3]]
    assert np.mean([len(set(a.tolist()) & set(b)) / 10 for a, b in zip(found, exact, strict=True)]) >= 0.9
    index.remove(np.arange(1, 401))
    assert index.list_items().ids.tolist() == list(range(401, 601))
    assert np.array_equal(index.vectors(np.arange(401, 601), SPACES[0]), vectors[400:])
    index.close()
    strict = MilvusIndex.open(str(tmp_path / "graph.db"), MilvusLimits(min_recall=1.01))
    assert strict.facts()["recall_at_10"] == facts["recall_at_10"]  # what was measured is kept
    with pytest.raises(FineSightError, match="of the ten nearest"):
        strict.finish()
    strict.close()


def test_the_encoder_stays_in_the_run(tmp_path: Path) -> None:
    mine, run = (small_encoder(tmp_path / name) for name in ("mine", "run"))
    index = open_or_create(tmp_path / "gallery.db", TorchEmbedder.load(mine), mine, tmp_path)
    assert index.encoder_folder() == mine / "encoder"
    assert index.skipped_file(mine) == mine / "index-skipped.csv"
    small_encoder(mine, seed=1)  # trained on since
    with pytest.raises(FineSightError, match=r"not the one that made the index any more.*--run RUN"):
        index.encoder_folder()
    os.rename(mine, tmp_path / "moved")
    with pytest.raises(FineSightError, match=r"not there.*--run RUN"):
        index.encoder_folder()
    assert fingerprint(run) == index.meta.fingerprint
    assert open_embedder("torch", index, run).fingerprint == index.meta.fingerprint  # a copy of it
    index.close()


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Address.parse("milvus://example.org/birds")
    assert (plain.uri, plain.collection, plain.lite) == ("http://example.org:19530", "birds", False)
    secret = Address.parse("milvuss://me:a%40b@example.org:443/birds_2")
    assert (secret.uri, secret.token) == ("https://example.org:443", "me:a@b")
    assert "a@b" not in secret.shown + repr(secret)
    assert "a%40b" not in secret.shown
    assert Address.parse("milvus://[::1]:9/x?token=abc").token == "abc"
    assert Address.parse("milvus://[::1]:9/x?token=abc").uri == "http://[::1]:9"
    assert Address.parse("some/where.db").lite
    for wrong in ("milvus://example.org", "milvus:///birds", "milvus://example.org/b-c", "milvus://h:99999/birds"):
        with pytest.raises(FineSightError, match="milvus://host:19530/collection"):
            Address.parse(wrong)
    monkeypatch.setenv("FINESIGHT_MILVUS_TOKEN", "word")
    assert Address.parse("milvus://example.org/birds").token == "word"


def test_no_server_is_said_soon() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        start = time.monotonic()
        for call in (open_index, index_exists):
            with pytest.raises(FineSightError, match="no Milvus server at milvus://127"):
                call(f"milvus://me:secret@127.0.0.1:{held.getsockname()[1]}/birds")
    assert time.monotonic() - start < 30


def test_a_server_that_is_no_milvus() -> None:
    """It takes the connection and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(FineSightError, match="cannot be used"):
            MilvusIndex.open(f"milvus://127.0.0.1:{server.getsockname()[1]}/birds", MilvusLimits(timeout=2.0))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(FineSightError, match=r"pip install finesight\[milvus\]"):
        create_index(tmp_path / "x.db", meta(), tmp_path)


def test_files_that_are_no_index(tmp_path: Path) -> None:
    (tmp_path / "file.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    for call in (open_index, index_exists):
        with pytest.raises(FineSightError, match="not one of Milvus Lite"):
            call(tmp_path / "file.db")
    address = Address.parse(str(tmp_path / "other.db"))
    client = connections.open(address)
    client.create_collection("finesight", dimension=4)
    connections.close(address, client)
    with pytest.raises(FineSightError, match="no FineSight index"):
        open_index(tmp_path / "other.db")
