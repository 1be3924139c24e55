"""What is particular about the folder index: its structures, files, locks and several readers."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.search.base import NewItems
from finesight.search.faiss_index import FaissIndex
from finesight.search.nearest import rank, scan
from finesight.search.structures import EFFORTS, FaissLimits, build, candidates, worst_recall
from indexes import DIMENSION, SPACES, batch, contents, empty_index, filled_index, item, meta, units
from reference.nearest import nearest

HNSW = {"exact_numbers": 1000}
IVF = {"exact_numbers": 1000, "graph_bytes": 1000}
FORMS = {"exact": {}, "hnsw": HNSW, "ivf-pq": IVF}


def found_like_the_reference(index: FaissIndex, vectors: np.ndarray, ids: list[int], space: str, k: int = 10) -> float:
    """The share of what brute force finds that the index finds too."""
    chosen = np.random.default_rng(99).integers(0, len(vectors), (20, 2))
    queries = vectors[chosen[:, 0]] + 0.5 * vectors[chosen[:, 1]]  # near one image and towards another
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    scores, hits = index.search(queries, k, space)
    assert scores.shape == hits.shape == (20, k)
    share = []
    for query, score, hit in zip(queries, scores, hits, strict=True):
        known = {number: row for number, row in zip(ids, vectors, strict=True)}
        np.testing.assert_allclose(score, [known[i] @ query for i in hit.tolist()], atol=1e-6)
        assert (np.diff(score) <= 0).all()
        share.append(len(set(hit.tolist()) & set(nearest(query, vectors, ids, k)[1])) / k)
    return float(np.mean(share))


def test_scan_and_rank_alone() -> None:
    """The rows that are owned, whatever the size of blocks and however many scores are held at a time."""
    vectors, queries = units(500, clusters=9), units(40, seed=5)
    live = np.arange(500) % 2 == 1
    (rows,) = scan(vectors[1:2], vectors, live, 1000)
    assert rows.tolist() == list(range(1, 500, 2))
    scores, ids = rank(vectors[1], rows, vectors, np.arange(500), 300)
    assert ids[0] == 1
    assert (ids[250:] == -1).all()
    assert (np.diff(scores[:250]) <= 0).all()
    answers = [
        [rank(query, rows, vectors, np.arange(500), 10) for query, rows in zip(queries, found, strict=True)]
        for found in (scan(queries, vectors, live, 10), scan(queries, vectors, live, 10, block=64, held=700))
    ]
    assert np.array_equal(*answers)


# --- structures -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hnsw", "ivf-pq"])
def test_structures_find_what_brute_force_finds(tmp_path: Path, form: str) -> None:
    vectors = units(2000, clusters=40)
    index = filled_index(tmp_path / "index", vectors, **FORMS[form])
    facts = index.facts()
    assert facts["kind"] == form
    assert facts["recall_at_10"] >= 0.95
    assert facts["recall_queries"] == 300
    assert found_like_the_reference(index, vectors, list(range(1, 2001)), SPACES[0]) >= 0.95
    assert found_like_the_reference(index, vectors[:, ::-1], list(range(1, 2001)), SPACES[1]) >= 0.95
    reader = FaissIndex(tmp_path / "index")
    assert reader.facts()["spaces"] == facts["spaces"]
    for one, two in zip(reader.search(vectors[:9], 7, SPACES[0]), index.search(vectors[:9], 7, SPACES[0]), strict=True):
        assert np.array_equal(one, two)
    assert reader.search(vectors[:9], 1, SPACES[0])[1][:, 0].tolist() == list(range(1, 10))
    for k in (1500, 2000):  # more than lie in the lists that are searched, or than a graph names
        hits = index.search(vectors[:2], k, SPACES[0])[1]
        assert [len(set(row)) for row in hits.tolist()] == [k, k]
        assert (hits > 0).all()


def test_tight_groups_that_a_graph_cannot_hold_together(tmp_path: Path) -> None:
    """In bursts of nearly the same photo no short walk leads from one to the next, so lists are built instead."""
    random = np.random.default_rng(0)
    vectors = units(12)[np.repeat(np.arange(12), 150)] + 0.01 * random.standard_normal((1800, DIMENSION))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    efforts = EFFORTS | {"hnsw": ((16, 0), (32, 0))}
    index = filled_index(tmp_path / "index", vectors, **HNSW, efforts=efforts)
    assert index.facts()["kind"] != "hnsw"
    assert index.facts()["recall_at_10"] >= 0.95
    assert found_like_the_reference(index, vectors, list(range(1, 1801)), SPACES[0]) >= 0.95


def test_more_dimensions_than_the_structures_work_in(tmp_path: Path) -> None:
    wide = units(1500, 16, clusters=30) @ units(16, 300, seed=1)
    vectors = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    index = filled_index(tmp_path / "index", vectors, **HNSW)
    assert index.facts()["kind"] == "hnsw"
    assert found_like_the_reference(index, vectors, list(range(1, 1501)), SPACES[0]) >= 0.95


@pytest.mark.parametrize("form", ["hnsw", "ivf-pq"])
def test_what_comes_and_goes_after_a_structure_was_built(tmp_path: Path, form: str) -> None:
    """A tail is searched beside it, dead rows never show, also where all near ones are dead."""
    vectors = units(2000, clusters=20)
    index = filled_index(tmp_path / "index", vectors, **FORMS[form])
    late = units(100, seed=3, clusters=20)
    index.add(batch(list(range(5001, 5101)), late))
    index.finish()
    assert index.facts()["built_over"] == 2000  # a small tail is no reason to build anew
    assert index.search(late, 1, SPACES[0])[1][:, 0].tolist() == list(range(5001, 5101))
    near = index.search(vectors[:1], 150, SPACES[0])[1][0]
    index.remove(near[near <= 2000])
    kept = [n for n in range(1, 2001) if n not in set(near.tolist())]
    rest = np.concatenate([vectors[[n - 1 for n in kept]], late])
    ids = kept + list(range(5001, 5101))
    assert found_like_the_reference(index, rest, ids, SPACES[0]) >= 0.95
    hits = index.search(vectors[:1], 150, SPACES[0])[1][0]
    assert set(hits.tolist()) <= set(ids)
    assert len(set(hits.tolist())) == 150


def test_a_long_tail_is_built_in(tmp_path: Path) -> None:
    index = filled_index(tmp_path / "index", units(1000, clusters=20), **HNSW)
    index.add(batch(list(range(5001, 5301)), units(300, seed=3)))
    index.finish()
    assert index.facts()["built_over"] == 1300
    files = sorted(path.name for path in (tmp_path / "index").glob("*.faiss"))
    assert files == ["average-0-1300.faiss", "rationale-gem-0-1300.faiss"]


def test_a_structure_that_finds_too_little_is_not_used(tmp_path: Path) -> None:
    """No structure reaches a recall above 1: search is exact and says so, and the next update tries no other."""
    vectors = units(600)
    index = filled_index(tmp_path / "index", vectors, **IVF, min_recall=1.01)
    assert index.facts()["kind"] == "exact"
    assert index.facts()["recall_at_10"] == 1.0
    assert found_like_the_reference(index, vectors, list(range(1, 601)), SPACES[0]) == 1
    assert not list((tmp_path / "index").glob("*.faiss"))
    before = index.snapshot().structures
    index.finish()
    assert index.snapshot().structures == before


@pytest.mark.slow
def test_effort_is_raised_until_the_recall_is_reached(tmp_path: Path) -> None:
    vectors = units(3000)  # without clusters: near ones are hard to find
    index = filled_index(tmp_path / "index", vectors, **IVF, efforts={"ivf-pq": ((2, 1), (10, 1), (4096, 256))})
    assert index.facts()["candidates"] == 4096
    assert index.facts()["recall_at_10"] > 0.97
    for found, recall in (((0.9, 0.5), 0.5), ((0.8, 0.8), 1.0), ((-1.0, -1.0), 0.0)):  # of equal scores any will do
        assert worst_recall(np.array([found], np.float32), np.array([[0.9, 0.8]], np.float32)) == recall


def test_more_candidates_are_a_more_careful_search_of_a_graph() -> None:
    """Vectors without any order are hard for a graph: what it misses at first, a larger effort must find."""
    random = np.random.default_rng(0)
    vectors, queries = (random.standard_normal((n, 48)).astype(np.float32) for n in (5000, 60))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    graph = build("hnsw", vectors)
    shares = []
    for pool in (16, 512):
        found = candidates(graph, queries, pool)
        shares.append(np.mean([np.isin(wanted, row).mean() for wanted, row in zip(best, found, strict=True)]))
    assert shares[0] < 0.9
    assert shares[1] > 0.98


def test_a_damaged_structure_costs_time_and_nothing_else(tmp_path: Path) -> None:
    vectors = units(1200, clusters=20)
    filled_index(tmp_path / "index", vectors, **HNSW).close()
    for file in (tmp_path / "index").glob("*.faiss"):
        file.write_bytes(file.read_bytes()[:1000])
    index = FaissIndex(tmp_path / "index", FaissLimits(**HNSW))
    assert index.facts()["kind"] == "exact"
    assert found_like_the_reference(index, vectors, list(range(1, 1201)), SPACES[0]) == 1
    index.finish()
    assert FaissIndex(tmp_path / "index").facts()["kind"] == "hnsw"


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_dead_rows_are_given_back(tmp_path: Path, form: str) -> None:
    vectors = units(1500, clusters=20)
    index = filled_index(tmp_path / "index", vectors, **FORMS[form])
    reader = FaissIndex(tmp_path / "index")
    old = reader.search(vectors[:3], 5, SPACES[0])[1]
    held = reader.snapshot()
    before = contents(index)
    index.remove(np.arange(1, 500))
    index.finish()
    size = sum(file.stat().st_size for file in (tmp_path / "index").glob("vectors-1/*"))
    assert size == 2 * 1001 * 4 * DIMENSION
    assert not (tmp_path / "index" / "vectors-0").exists()
    rest = {path: facts for path, facts in before.items() if int(facts[0]) >= 500}
    assert contents(index) == contents(reader) == contents(FaissIndex(tmp_path / "index")) == rest
    assert found_like_the_reference(reader, vectors[499:], list(range(500, 1501)), SPACES[0]) >= 0.95
    assert np.array_equal(held.search(vectors[:3], 5, SPACES[0])[1], old)  # a search that had begun still ends


def test_a_failing_commit_changes_nothing(tmp_path: Path) -> None:
    index = filled_index(tmp_path / "index", units(20))
    before = contents(index)
    broken = replace(item(90), mask=np.zeros(3, np.float32))  # no grid: it cannot be stored
    with pytest.raises(IndexError):
        index.add(NewItems([item(3), broken], dict.fromkeys(SPACES, units(2, seed=6))))
    assert contents(index) == before
    index.add(batch([90], units(1, seed=6)))
    assert len(index) == 21


def test_what_a_killed_writer_left_is_cut_off(tmp_path: Path) -> None:
    index = filled_index(tmp_path / "index", units(50))
    before = contents(index)
    index.close()
    for file in (tmp_path / "index" / "vectors-0").iterdir():
        with file.open("ab") as stream:
            stream.write(b"\x7f" * 1001)
    (tmp_path / "index" / "vectors-1").mkdir()
    (tmp_path / "index" / ".average-0-50.faiss.tmp").write_bytes(b"half")
    assert contents(FaissIndex(tmp_path / "index")) == before
    index = FaissIndex(tmp_path / "index")
    index.add(batch([99], units(1, seed=4)))
    assert {path: facts for path, facts in contents(index).items() if facts[0] != 99} == before
    assert np.array_equal(index.vectors(np.array([99]), SPACES[0]), units(1, seed=4))
    sizes = {file.stat().st_size for file in (tmp_path / "index" / "vectors-0").iterdir()}
    assert sizes == {51 * 4 * DIMENSION}
    assert not (tmp_path / "index" / "vectors-1").exists()
    assert not list((tmp_path / "index").glob(".*faiss*"))


def test_one_writer_and_readers_that_see_its_commits(tmp_path: Path) -> None:
    writer, reader = empty_index(tmp_path / "index"), FaissIndex(tmp_path / "index")
    assert len(reader) == 0
    writer.add(batch([1, 2], units(2)))
    assert len(reader) == 2
    with pytest.raises(FineSightError, match="Another process is writing"):
        reader.add(batch([3], units(1)))
    writer.finish()  # lets go
    reader.add(batch([3], units(1, seed=2)))
    assert len(writer) == 3
    reader.close()
    writer.remove(np.array([1]))
    assert len(writer) == 2


def test_an_index_replaced_under_a_reader(tmp_path: Path) -> None:
    """SQLite finds a journal by its name: the reader of a deleted index must not undo what a new one is writing."""
    filled_index(tmp_path / "index", units(5)).close()
    reader = FaissIndex(tmp_path / "index")
    assert len(reader) == 5
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(FineSightError, match="deleted or replaced"):
        reader.search(units(1), 3, SPACES[0])
    filled_index(tmp_path / "index", units(7)).close()
    journal = tmp_path / "index" / "items.db-journal"
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(600))  # as a writer has while it commits
    with pytest.raises(FineSightError, match="deleted or replaced"):
        len(reader)
    assert journal.exists()
    reader.close()


def test_facts_while_files_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit makes a journal and removes it: it may be gone as soon as it was listed, or looked at once."""
    index = filled_index(tmp_path / "index", units(5))
    before, look, journal = index.facts()["bytes"], Path.stat, tmp_path / "index" / "other-journal"

    def look_once(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = look(self, follow_symlinks=follow_symlinks)
        if self.name == journal.name:
            self.unlink()
        return status

    journal.write_bytes(bytes(10))
    monkeypatch.setattr(Path, "stat", look_once)
    assert index.facts()["bytes"] == before + 10
    assert not os.path.exists(journal)
    assert index.facts()["bytes"] == before


@pytest.mark.slow
def test_threads_search_while_the_index_changes(tmp_path: Path) -> None:
    """Every answer is of one state: no item twice, none that was never there, scores that are its own."""
    vectors = units(600, clusters=10)
    index = filled_index(tmp_path / "index", vectors[:400], **HNSW)
    problems: list[str] = []
    done = threading.Event()

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not done.is_set():
            query = vectors[random.integers(0, 400)]
            scores, ids = index.search(query, 10, SPACES[0])
            if len(set(ids[0].tolist())) != 10 or not np.allclose(vectors[ids[0] - 1] @ query, scores[0], atol=1e-6):
                problems.append(f"{ids} {scores}")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for start in range(400, 600, 40):
        index.add(batch(list(range(start + 1, start + 41)), vectors[start : start + 40]))
        index.remove(np.arange(start - 400 + 1, start - 400 + 31))
        index.finish()
    done.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]
    assert len(index) == 600 - 150


def test_damage_is_named(tmp_path: Path) -> None:
    filled_index(tmp_path / "good", units(10)).close()
    cases = {
        "cut vectors": ("vectors-0/average.f32", lambda f: f.write_bytes(f.read_bytes()[:100]), "too short"),
        "no vectors": ("vectors-0/average.f32", Path.unlink, "missing"),
        "no items": ("items.db", Path.unlink, "damaged"),
        "foreign items": ("items.db", lambda f: f.write_bytes(b"x" * 9999), "cannot be used"),
        "cut meta": ("index.json", lambda f: f.write_text(f.read_text()[:40]), "damaged"),
        "later format": ("index.json", lambda f: f.write_text('{"format": 2}'), "2"),
        "no meta": ("index.json", Path.unlink, "no index"),
    }
    for name, (file, damage, words) in cases.items():
        folder = Path(shutil.copytree(tmp_path / "good", tmp_path / name))
        damage(folder / file)
        with pytest.raises(FineSightError, match=words):
            len(FaissIndex(folder))
    folder = Path(shutil.copytree(tmp_path / "good", tmp_path / "cut again"))
    (folder / "vectors-0/average.f32").write_bytes(b"")
    with pytest.raises(FineSightError, match="too short"):  # a writer must not fill up with zeros what is lost
        FaissIndex(folder).add(batch([50], units(1)))


def test_an_index_is_not_made_just_anywhere(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for where, words in (("full", "not empty"), ("file", "is a file")):
        with pytest.raises(FineSightError, match=words):
            FaissIndex.create(tmp_path / where, meta(), tmp_path / "encoder")
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["thesis.txt"]
    FaissIndex.create(tmp_path / "new" / "deep", meta(), tmp_path / "encoder").close()
    (tmp_path / "new" / "deep" / "index.json").unlink()  # killed just before the end: begun anew
    FaissIndex.create(tmp_path / "new" / "deep", meta(), tmp_path / "encoder").close()
