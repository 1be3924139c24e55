"""An index in a real Milvus server: graphs and their recall, restarts, cut wires, several writers, passwords, kills."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.search.base import Index
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.searcher import Searcher
from indexes import SPACES, Array, batch, contents, item, meta, small_encoder, units
from milvus_servers import USER, MilvusProcess, Wire
from processes import TIMEOUT, command, refused, start_server, succeeded
from reference.nearest import nearest
from serving import Serving

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
from finesight.search.milvus_client import Address, make_collection
from finesight.search.milvus_index import MilvusIndex, MilvusLimits

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ELSEWHERE = json.dumps({"machine": "another", "process": 1, "started": "1"})  # a writer on another machine
SHORT = MilvusLimits(lease=1.5)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Another one when a test is run again: the server still has what it left."""
    return f"{request.node.name}_{uuid.uuid4().hex[:6]}"


def collections(server: MilvusProcess, name: str) -> list[str]:
    return sorted(one for one in server.client().list_collections() if one.startswith(f"{name}__"))


def said_by_milvus(server: MilvusProcess, name: str, owner: str) -> None:
    """Let the writer of an index be another one than it is."""
    epochs = [int(found[1]) for one in collections(server, name) if (found := re.search(r"__fs_e(\d+)$", one))]
    newest = f"{name}__fs_e{max(epochs)}"
    server.client().alter_collection_properties(newest, {"finesight.owner": owner})


def recall(index: Index, queries: Array, vectors: Array, ids: list[int], space: str) -> float:
    found = index.search(queries, 10, space)[1]
    exact = [nearest(query, vectors, ids, 10)[1] for query in queries]
    return float(np.mean([len(set(a.tolist()) & set(b)) / 10 for a, b in zip(found, exact, strict=True)]))


def test_graphs_filters_deletes_and_upserts(milvus_server: MilvusProcess, name: str, tmp_path: Path) -> None:
    vectors, ids = units(3000, clusters=15), list(range(1, 3001))
    index = create_index(milvus_server.uri(name), meta(), tmp_path)
    for start in range(0, 3000, 1500):
        index.add(batch(ids[start : start + 1500], vectors[start : start + 1500]))
    index.finish()
    facts: dict[str, Any] = index.facts()
    assert facts["items"] == 3000
    for space, own in ((SPACES[0], vectors), (SPACES[1], vectors[:, ::-1])):
        assert facts["spaces"][space]["kind"] == "hnsw"
        assert facts["spaces"][space]["recall_at_10"] >= 0.95
        assert facts["spaces"][space]["recall_queries"] == 300
        assert recall(index, own[:40], own, ids, space) >= 0.95
    assert len(collections(milvus_server, name)) == 3  # two spaces, one manifest

    index.remove(np.arange(1, 3001, 2))
    newer = units(100, seed=8)
    index.add(batch(ids[1:201:2], newer))  # upserts
    vectors[1:201:2] = newer
    left, kept = ids[1::2], vectors[1::2]
    assert len(index) == 1500
    assert index.list_items().ids.tolist() == left
    assert recall(index, vectors[:40], kept, left, SPACES[0]) >= 0.95
    assert np.array_equal(index.vectors(np.array(left[:100]), SPACES[1]), newer[:, ::-1])

    searcher = Searcher(index)
    scores, best = nearest(kept[0], kept[1:], left[1:], 5)
    found = [hit.id for hit in searcher.by_vector(kept[0], 5, left_out=left[0]).hits]
    assert len(set(found) & set(best)) >= 4  # of a graph, which may miss one
    found = [hit.id for hit in searcher.by_vector(kept[0], 5, left_out=left[0], min_score=scores[2] - 1e-6).hits]
    assert len(found) >= 2
    assert found == [item for item in best[:3] if item in found]
    index.close()

    strict = MilvusIndex.open(milvus_server.uri(name), MilvusLimits(min_recall=1.01))
    with pytest.raises(FineSightError, match="of the ten nearest"):  # half of it has changed: measured again
        strict.finish()
    strict.close()


def test_the_server_is_killed_and_starts_again(milvus_server: MilvusProcess, name: str, tmp_path: Path) -> None:
    uri = milvus_server.uri(name)
    index, reader = create_index(uri, meta(), tmp_path), open_index(uri)
    index.add(batch(list(range(1, 101)), units(100)))
    index.finish()
    index.add(batch(list(range(101, 141)), units(40, seed=1)))  # in no segment yet
    index.remove(np.array([1, 2]))
    before = contents(reader)
    assert len(before) == 138
    milvus_server.kill()
    milvus_server.start()
    assert contents(reader) == before
    index.add(batch([1, 2], units(2, seed=2)))
    index.finish()
    again = open_index(uri)
    assert len(again) == len(contents(again)) == 140
    assert again.search(units(2, seed=2), 1, SPACES[0])[1].tolist() == [[1], [2]]
    for one in (index, reader, again):
        one.close()


def test_the_connection_is_lost_while_writing(milvus_server: MilvusProcess, name: str, tmp_path: Path) -> None:
    """A short loss is waited for, a long one is said in a sentence; nothing is doubled, no batch is there by half."""
    wire = Wire(milvus_server.port)
    vectors, uri = units(200, 256), milvus_server.uri(name, port=wire.port)
    index = MilvusIndex.create(uri, meta(dimension=256), tmp_path)
    reader = open_index(milvus_server.uri(name))
    index.add(batch([1], vectors[:1]))
    for number, share in enumerate((0.2, 0.7), 1):  # the batch has 82 kB: in the first space, and in the second
        wire.cut_after(int(share * 82_000), mend_after=0.3)
        part = slice(40 * number, 40 * number + 40)
        index.add(batch(list(range(40 * number, 40 * number + 40)), vectors[part]))
        assert not wire.is_due
        assert len(reader) == len(reader.list_items().ids) == 1 + 40 * number
    index.finish()
    index.close()
    index = MilvusIndex.open(uri, MilvusLimits(timeout=3.0))  # for a loss that is longer
    wire.cut_after(50_000)
    with pytest.raises(FineSightError, match="cannot be used"):
        index.add(batch(list(range(120, 160)), vectors[120:160]))
    assert sorted(reader.list_items().ids.tolist()) == [1, *range(40, 120)]
    wire.mend()
    deadline = time.monotonic() + TIMEOUT
    while len(reader) == 81:  # the same one goes on as soon as the library connects again: it waits between its tries
        with suppress(FineSightError):
            index.add(batch(list(range(120, 160)), vectors[120:160]))
        assert time.monotonic() < deadline
    index.close()
    reader.finish()
    found = contents(reader)
    assert len(found) == len(reader) == 121
    for number in range(40, 160):
        assert found[item(number).path][-2:] == (vectors[number].tobytes(), vectors[number][::-1].tobytes())
    assert reader.search(vectors[130:131], 3, SPACES[0])[1][0, 0] == 130
    reader.close()
    wire.close()


def test_a_writer_on_another_machine(milvus_server: MilvusProcess, name: str, tmp_path: Path) -> None:
    """As long as it gives signs of life the second one is refused; when it has died the second one takes over."""
    uri = milvus_server.uri(name)
    first, second = MilvusIndex.create(uri, meta(), tmp_path, limits=SHORT), MilvusIndex.open(uri, SHORT)
    first.add(batch([1], units(1)))
    with pytest.raises(FineSightError, match="Another process is writing"):  # it is of this machine, and runs
        second.add(batch([2], units(1)))
    said_by_milvus(milvus_server, name, ELSEWHERE)
    with pytest.raises(FineSightError, match="Another process is writing"):
        second.add(batch([2], units(1)))
    first.finish()
    second.add(batch([2], units(1)))
    second.close()
    said_by_milvus(milvus_server, name, ELSEWHERE)  # nobody is there
    start = time.monotonic()
    first.add(batch([3], units(1)))
    assert time.monotonic() - start >= SHORT.lease
    assert first.list_items().ids.tolist() == [1, 2, 3]
    first.close()


def _add_until_refused(uri: str, told: Any) -> None:
    """Add one item after the other; tell the last one that was added, and then why no more."""
    index = open_index(uri)
    for number in range(1, 100_000):
        try:
            index.add(batch([number], units(1, seed=number)))
        except FineSightError as error:
            told.send(str(error))
            return
        told.send(number)


def test_a_writer_that_comes_back_from_the_dead(milvus_server: MilvusProcess, name: str, tmp_path: Path) -> None:
    """It was stopped for so long that another one took over: it must not spoil what that one wrote."""
    uri = milvus_server.uri(name)
    index = MilvusIndex.create(uri, meta(), tmp_path, limits=SHORT)
    start_server()
    context = multiprocessing.get_context("forkserver")
    ear, mouth = context.Pipe(duplex=False)
    writer = context.Process(target=_add_until_refused, args=(uri, mouth), daemon=True)
    writer.start()
    mouth.close()  # so that a writer that dies is heard
    number = 0
    while number < 3:
        assert ear.poll(TIMEOUT), "the writer has not added an image"
        number = ear.recv()
        assert isinstance(number, int), number
    said_by_milvus(milvus_server, name, ELSEWHERE)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGSTOP)
    added = list(range(500_000, 500_020))
    index.add(batch(added, units(20, seed=1)))
    os.kill(writer.pid, signal.SIGCONT)
    last: Any = 3
    while ear.poll(TIMEOUT) and not isinstance(heard := ear.recv(), str):
        last = heard
    assert "took over writing" in heard
    writer.join(TIMEOUT)
    ids = index.list_items().ids.tolist()
    done = len(ids) - len(added)
    assert ids == [*range(1, done + 1), *added]
    assert done in (last, last + 1)  # it may have been stopped when it had just committed one
    for space in SPACES:
        assert sorted(number for block, _ in index.blocks(space) for number in block.tolist()) == ids
    index.finish()
    index.close()


def test_user_and_password(milvus_server: MilvusProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not index_exists(milvus_server.uri(name))
    for user in ("root:secret", ""):
        with pytest.raises(FineSightError) as error:
            index_exists(milvus_server.uri(name, user))
        assert "secret" not in str(error.value)
        assert "cannot be used" in str(error.value)
        assert "auth" in str(error.value)
    monkeypatch.setenv("FINESIGHT_MILVUS_TOKEN", "root:Milvus")
    assert not index_exists(milvus_server.uri(name, ""))


def test_an_index_of_one_collection(milvus_server: MilvusProcess, name: str) -> None:
    """As older versions made it in a server."""
    address = Address.parse(milvus_server.uri(name))
    one = meta().model_copy(update={"spaces": SPACES[:1]})
    make_collection(milvus_server.client(), address, one, "HNSW")
    index = open_index(milvus_server.uri(name))
    index.add(batch([1, 2, 3], units(3)))
    assert index.search(units(3), 1, SPACES[0])[1].tolist() == [[1], [2], [3]]
    assert len(index) == 3
    index.close()
    with pytest.raises(FineSightError, match="already"):
        create_index(milvus_server.uri(name), meta(), Path())


def test_commands_search_and_serve(
    milvus_server: MilvusProcess, name: str, class_folders: Path, tmp_path: Path
) -> None:
    """An index in a server is built, searched and served by its address, and nobody is told the password."""
    uri, run = milvus_server.uri(name), small_encoder(tmp_path / "run")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}  # where labels are
    query = next(class_folders.glob("*/*.png"))
    built = succeeded(command("index", run, class_folders, "--index", uri, "--json", "--quiet"))
    assert json.loads(built.out)["added"] == 48
    found = succeeded(command("search", uri, query, "-k", "3", "--json"))
    hits = json.loads(found.out)["results"][0]["hits"]
    assert len(hits) == 3
    assert hits[0]["score"] > 0.999
    assert hits[0]["path"] == str(query.relative_to(class_folders))
    with Serving("serve", uri, "--port", "0", "--no-open", "--quiet", **state) as serving:
        health = httpx.get(f"{serving.url}api/health", timeout=TIMEOUT).json()
        assert (health["status"], health["items"]) == ("ok", 48)
        sent = {"file": (query.name, query.read_bytes(), "image/png")}
        answer = httpx.post(f"{serving.url}api/search", files=sent, data={"k": "3"}, timeout=TIMEOUT).json()
        assert [hit["path"] for hit in answer["hits"]] == [hit["path"] for hit in hits]
        shown = httpx.get(f"{serving.url}api/items/{answer['hits'][0]['id']}/thumb", timeout=TIMEOUT)
        assert shown.headers["content-type"] == "image/jpeg"
        label = {"ids": [answer["hits"][0]["id"]], "label": "wren"}
        assert httpx.post(f"{serving.url}api/labels", json=label, timeout=TIMEOUT).status_code == 200
        code, _, said = serving.stop()
    assert (code, "Traceback" in said) == (0, False)
    labels = succeeded(command("labels", "show", uri, **state))
    assert "1  wren" in labels.out
    wrong = refused(command("search", milvus_server.uri("nothing"), query), "There is no index")
    for text in (built.out, built.err, found.out, found.err, said, labels.out, labels.err, wrong):
        assert USER not in text


def test_killed_at_random_moments(milvus_server: MilvusProcess, tmp_path: Path) -> None:
    """The short form of what ``make chaos`` does with an index in Milvus."""
    from chaos.kills import kill_trials, undisturbed
    from chaos.updates import MilvusUpdates
    from chaos.workloads import World

    nowhere = World(tmp_path, tmp_path)  # it has images and a run of its own
    workload = MilvusUpdates(milvus_server, tmp_path / "own", seed=1)
    try:
        known = {workload.name: undisturbed(workload, nowhere, tmp_path / "whole")}
        trials = list(kill_trials([workload], known, nowhere, tmp_path, seed=1, kills=4, each=2, minutes=2))
    finally:
        workload.reader.stop()
    assert not [problem for trial in trials for problem in trial.problems]
    assert sum(trial.kills for trial in trials) >= 2
    assert workload.reader.looks > 3
