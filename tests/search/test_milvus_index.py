"""The Milvus index, in a Milvus Lite file, against the folder index and brute force: same calls, same answers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import fingerprint
from finesight.search.base import Index, NewItems
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.image_files import path_id
from finesight.search.open_embedder import open_embedder
from finesight.search.searcher import Searcher
from indexes import DIMENSION, SPACES, batch, contents, empty_index, filled_index, item, meta, small_encoder, units
from processes import start_server
from reference.nearest import nearest
from serving import drawn

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
from finesight.search.milvus_client import Address
from finesight.search.milvus_index import MilvusIndex


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[MilvusIndex]:
    index = MilvusIndex.create(str(tmp_path / "gallery.db"), meta(), tmp_path)
    yield index
    index.close()


def fill(index: Index, vectors: np.ndarray, ids: list[int] | None = None) -> None:
    """As ``filled_index`` does."""
    ids = ids or list(range(1, len(vectors) + 1))
    for start in range(0, len(vectors), 1000):
        index.add(batch(ids[start : start + 1000], vectors[start : start + 1000]))
    index.finish()


# --- the same answers -------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_folder_index(tmp_path: Path, empty: MilvusIndex) -> None:
    vectors = units(250, clusters=9)
    folder = filled_index(tmp_path / "index", vectors)
    fill(empty, vectors)
    queries = np.concatenate([units(6, seed=7), vectors[:6]])
    for space in SPACES:
        for k in (1, 10, 40):
            scores, ids = empty.search(queries, k, space)
            expected, names = folder.search(queries, k, space)
            np.testing.assert_allclose(scores, expected, atol=1e-5)
            assert np.array_equal(ids, names)
    reference = nearest(queries[0], vectors, list(range(1, 251)), 10)[1]
    assert empty.search(queries[:1], 10, SPACES[0])[1][0].tolist() == reference
    assert contents(empty) == contents(folder)
    assert [array.tolist() for array in vars(empty.list_items()).values()] == [
        array.tolist() for array in vars(folder.list_items()).values()
    ]
    facts = empty.facts()
    assert (facts["store"], facts["items"], facts["kind"], facts["recall_at_10"]) == ("milvus", 250, "exact", 1.0)
    assert len(empty) == 250


def test_ties_go_by_id_however_many(empty: MilvusIndex) -> None:
    vectors = np.repeat(units(3), [1, 150, 1], axis=0)
    numbers = np.random.default_rng(0).permutation(np.arange(1, 153)).tolist()
    empty.add(batch(numbers, vectors))
    scores, ids = empty.search(vectors[1:2], 10, SPACES[0])
    assert ids[0].tolist() == sorted(numbers[1:151])[:10]
    assert 1 - 1e-5 < scores[0, -1] <= scores[0, 0] <= 1


def test_fewer_items_than_asked_for(empty: MilvusIndex) -> None:
    scores, ids = empty.search(units(2), 5, SPACES[0])
    assert len(empty) == 0
    assert (ids == -1).all()
    assert (scores == -1).all()
    assert list(empty.blocks(SPACES[0])) == []
    assert len(empty.list_items().ids) == 0
    empty.add(batch([4, 5], units(2)))  # seen at once, without a flush
    scores, ids = empty.search(units(2), 5, SPACES[0])
    assert sorted(ids[0].tolist()) == [-1, -1, -1, 4, 5]
    assert scores[0, 2:].tolist() == [-1, -1, -1]


def test_items_come_back_as_they_were(empty: MilvusIndex) -> None:
    odd = [
        "ä/ö é.jpg",
        "a" * 200 + ".png",
        os.fsdecode(b"not-utf8-\xff.jpg"),
        "quote'\".jpg",
        "new\nline.jpg",
        "{p}.jpg",
    ]
    items = [item(path_id(path), path) for path in odd]
    vectors = units(len(odd))
    empty.add(NewItems(items, dict.fromkeys(SPACES, vectors)))
    for one, vector in zip(items, vectors, strict=True):
        again = empty.item(one.id)
        assert again is not None
        assert (again.path, again.bytes, again.mtime_ns) == (one.path, one.bytes, one.mtime_ns)
        assert (again.width, again.height) == (640, 480)
        assert np.array_equal(again.mask, one.mask)
        assert np.array_equal(empty.vectors(np.array([one.id]), SPACES[0])[0], vector)
    assert sorted(empty.list_items().paths.tolist()) == sorted(odd)
    assert [one and one.id for one in empty.items([items[3].id, 12345, items[0].id])] == [
        items[3].id,
        None,
        items[0].id,
    ]
    assert empty.item(12345) is None
    with pytest.raises(FineSightError, match="no item 12345"):
        empty.vectors(np.array([items[0].id, 12345]), SPACES[0])
    with pytest.raises(FineSightError, match="no features 'gem'"):
        empty.search(vectors, 1, "gem")


def test_changes_and_what_makes_no_sense(empty: MilvusIndex) -> None:
    empty.add(batch([1, 2, 3], units(3)))
    newer = units(1, seed=8)
    empty.add(batch([2], newer))
    assert len(empty) == 3
    assert empty.search(newer, 1, SPACES[0])[1].tolist() == [[2]]
    assert np.array_equal(empty.vectors(np.array([2]), SPACES[0]), newer)
    empty.add(NewItems([item(9, item(3).path)], dict.fromkeys(SPACES, units(1, seed=9))))  # a path under a new id
    assert empty.list_items().ids.tolist() == [1, 2, 9]
    empty.remove(np.array([1, 777]))
    assert sorted(contents(empty)) == [item(2).path, item(3).path]
    with pytest.raises(ValueError, match="twice"):
        empty.add(batch([1, 1], units(2)))
    with pytest.raises(ValueError, match="vectors"):
        empty.add(batch([1, 2], units(3)))
    empty.add(batch([], units(0)))
    assert len(empty) == 2


def test_pages_hold_everything(empty: MilvusIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one page of ids that lie anywhere, some removed and some changed since they were written out."""
    monkeypatch.setattr("finesight.search.milvus_index.PAGE", 100)
    ids = np.random.default_rng(1).choice(2**52, 950, replace=False).tolist()
    vectors = units(950)
    fill(empty, vectors, ids)
    empty.remove(np.array(ids[::10]))
    empty.add(batch(ids[1:50:10], units(5, seed=3)))
    left = sorted(set(ids) - set(ids[::10]))
    assert empty.list_items().ids[np.argsort(empty.list_items().ids)].tolist() == left
    seen = [block.tolist() for block, _ in empty.blocks(SPACES[1], rows=64)]
    assert len(seen) > 10
    assert [number for block in seen for number in block] == left
    rows = dict(zip(ids, vectors[:, ::-1], strict=True)) | dict(
        zip(ids[1:50:10], units(5, seed=3)[:, ::-1], strict=True)
    )
    for block, found in empty.blocks(SPACES[1], rows=300):
        assert np.array_equal(found, np.stack([rows[number] for number in block.tolist()]))
    assert np.array_equal(empty.vectors(np.array(left), SPACES[1]), np.stack([rows[number] for number in left]))


def test_a_graph_has_its_recall_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server does, done by the file: a graph instead of looking at all."""
    vectors = units(1200, clusters=30)
    index = MilvusIndex.create(str(tmp_path / "graph.db"), meta(), tmp_path, kind="HNSW")
    fill(index, vectors)
    facts = index.facts()
    assert facts["kind"] == "hnsw"
    assert facts["recall_queries"] == 300
    assert facts["recall_at_10"] >= 0.97
    found = index.search(vectors[:30], 10, SPACES[0])[1]
    exact = [nearest(vector, vectors, list(range(1, 1201)), 10)[1] for vector in vectors[:3]]
    assert np.mean([len(set(a.tolist()) & set(b)) / 10 for a, b in zip(found, exact, strict=False)]) >= 0.9
    best = index._exact(vectors[:9], 10, SPACES[0])
    np.testing.assert_allclose(best, -np.sort(-(vectors[:9] @ vectors.T), axis=1)[:, :10], atol=1e-6)
    monkeypatch.setattr("finesight.search.milvus_index.RECALL", 1.01)
    with pytest.raises(FineSightError, match="of the ten nearest"):
        index.finish()
    index.close()
    again = MilvusIndex.open(str(tmp_path / "graph.db"))  # what was measured is kept
    assert again.facts()["recall_at_10"] == facts["recall_at_10"]
    again.close()


# --- real images ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("run"))


def drawings(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.png").write_bytes(drawn(size=(40 + 4 * number, 40), seed=number))
    return folder


def built(where: Path, run: Path, images: Path) -> Index:
    engine = TorchEmbedder.load(run)
    index = open_or_create(str(where), engine, run, images)
    update_index(index, engine, images, workers=1)
    return index


def test_updates_and_searches_like_the_folder_index(tmp_path: Path, run: Path) -> None:
    images = drawings(tmp_path / "images", 10)
    files = sorted(path for path in images.rglob("*") if path.is_file())
    places = (tmp_path / "deep" / "gallery.db", tmp_path / "index")
    for where in places:
        built(where, run, images).close()
    files[0].write_bytes(files[1].read_bytes())
    files[2].unlink()
    (images / "new.png").write_bytes(files[3].read_bytes())
    engine = TorchEmbedder.load(run)
    pair = [open_index(where) for where in places]
    for index in pair:
        report = update_index(index, engine, images, workers=1)
        assert (report.added, report.changed, report.removed, report.kept) == (1, 1, 1, 8)
        again = update_index(index, engine, images, workers=1)
        assert (again.added, again.changed, again.removed, again.kept) == (0, 0, 0, 10)
    assert contents(pair[0]) == contents(pair[1])
    for options in ({}, {"by": "average"}, {"box": (0.2, 0.2, 0.5, 0.5)}, {"diversity": 0.4}, {"min_score": 0.5}):
        one, two = (Searcher(index, engine).by_picture(files[4], 5, **options).hits for index in pair)
        assert [hit.path for hit in one] == [hit.path for hit in two]
        np.testing.assert_allclose([hit.score for hit in one], [hit.score for hit in two], atol=1e-5)
    assert open_embedder("torch", pair[0]).fingerprint == engine.fingerprint
    for index in pair:
        index.close()


def test_the_encoder_that_made_it_is_asked_for(tmp_path: Path, run: Path) -> None:
    images = drawings(tmp_path / "images", 2)
    other = small_encoder(tmp_path / "other", seed=1)
    mine = small_encoder(tmp_path / "mine")
    index = built(tmp_path / "gallery.db", mine, images)
    assert index.encoder_folder() == mine / "encoder"
    with pytest.raises(FineSightError, match="another encoder"):
        update_index(index, TorchEmbedder.load(other), images)
    with pytest.raises(FineSightError, match="another encoder"):
        Searcher(index, TorchEmbedder.load(other))
    small_encoder(mine, seed=1)  # trained on since
    with pytest.raises(FineSightError, match=r"not the one that made the index any more.*--run RUN"):
        index.encoder_folder()
    os.rename(mine, tmp_path / "moved")
    with pytest.raises(FineSightError, match=r"not there.*--run RUN"):
        index.encoder_folder()
    assert fingerprint(run) == index.meta.fingerprint
    assert open_embedder("torch", index, run).fingerprint == index.meta.fingerprint  # a copy of it
    index.close()


def _add_slowly(where: str, folder: str, said: str) -> None:
    """In a process of its own: a batch after the other until it is killed."""
    index = MilvusIndex.create(where, meta(), Path(folder))
    for start in range(1, 100_000, 20):
        index.add(batch(list(range(start, start + 20)), units(20, seed=start)))
        Path(said).write_text(str(start + 19))


def test_killed_at_any_point_it_continues(tmp_path: Path) -> None:
    where, said = str(tmp_path / "gallery.db"), tmp_path / "said"
    start_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_add_slowly, args=(where, str(tmp_path), str(said)), daemon=True)
    process.start()
    deadline = time.monotonic() + 60
    while not said.exists() or int(said.read_text() or 0) < 200:
        assert process.is_alive(), "ended too early"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.003)
    with pytest.raises(FineSightError, match="one in at a time"):
        MilvusIndex.open(where)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    told = int(said.read_text())
    index = MilvusIndex.open(where)
    known = index.list_items().ids.tolist()
    assert set(range(1, told + 1)) <= set(known)  # what was committed is there
    assert len(known) == len(set(known)) == len(index)
    assert len(known) % 20 == 0  # and no batch half
    for start in range(1, told + 41, 20):  # again: nothing doubles
        index.add(batch(list(range(start, start + 20)), units(20, seed=start)))
    index.finish()
    assert sorted(index.list_items().ids.tolist()) == list(range(1, max(told + 40, len(known)) + 1))
    assert index.search(units(20, seed=1)[:1], 1, SPACES[0])[1].tolist() == [[1]]
    index.close()


# --- places -----------------------------------------------------------------------------------------------------------


def test_addresses() -> None:
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


def test_a_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINESIGHT_MILVUS_TOKEN", "word")
    assert Address.parse("milvus://example.org/birds").token == "word"


def test_no_server_is_said_soon() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        start = time.monotonic()
        for call in (open_index, index_exists):
            with pytest.raises(FineSightError, match="no Milvus server at milvus://127"):
                call(f"milvus://me:secret@127.0.0.1:{held.getsockname()[1]}/birds")
    assert time.monotonic() - start < 10


def test_a_server_that_is_no_milvus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the connection and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        monkeypatch.setattr("finesight.search.milvus_client.PATIENCE", 2.0)
        with pytest.raises(FineSightError, match="cannot be used"):
            open_index(f"milvus://127.0.0.1:{server.getsockname()[1]}/birds")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(FineSightError, match=r"pip install finesight\[milvus\]"):
        create_index(tmp_path / "x.db", meta(), tmp_path)


def test_places_that_hold_no_index(tmp_path: Path) -> None:
    assert not index_exists(tmp_path / "none.db")
    with pytest.raises(FineSightError, match=r"no index .*none\.db"):
        open_index(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()  # looking makes nothing
    (tmp_path / "file.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    for call in (open_index, index_exists):
        with pytest.raises(FineSightError, match="not one of Milvus Lite"):
            call(tmp_path / "file.db")
    index = create_index(tmp_path / "one.db", meta(), tmp_path)
    assert index_exists(tmp_path / "one.db")
    with pytest.raises(FineSightError, match="already"):
        create_index(tmp_path / "one.db", meta(), tmp_path)
    second = open_index(tmp_path / "one.db")  # beside the first, in one process
    index.add(batch([1], units(1)))
    assert len(second) == 1
    index.close()
    index.close()
    assert len(second) == 1  # still open
    second.close()


def test_a_collection_of_someone_else(tmp_path: Path) -> None:
    from finesight.search.milvus_client import connections

    address = Address.parse(str(tmp_path / "other.db"))
    client = connections.open(address)
    client.create_collection("finesight", dimension=4)
    connections.close(address, client)
    with pytest.raises(FineSightError, match="no FineSight index"):
        open_index(tmp_path / "other.db")
    assert empty_index(tmp_path / "index").meta.dimension == DIMENSION  # a folder beside it is none of its business
