"""What every index engine promises, tested on each registered one: same calls, same answers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.io.atomic import write_atomic
from finesight.search.base import Index, NewItems
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import INDEX_ENGINES, create_index, find_engine, index_exists, open_index, uri_help
from finesight.search.image_files import path_id
from finesight.search.open_embedder import open_embedder
from finesight.search.searcher import Searcher
from indexes import SPACES, batch, contents, item, meta, small_encoder, units
from milvus_servers import MilvusProcess
from processes import TIMEOUT, environment, start_server
from reference.nearest import nearest
from serving import drawn

pytestmark = pytest.mark.slow

URIS = {"faiss": ("index",), "milvus": ("gallery.db", "milvus://")}  # below a scratch folder, or in the server
NEEDS = {"gallery.db": ("pymilvus", "milvus_lite")}
PLACES = [
    pytest.param((name, uri), id=f"{name}-{uri}", marks=[pytest.mark.cluster] if "://" in uri else [])
    for name in sorted(INDEX_ENGINES)
    for uri in URIS.get(name, ("",))
]


class Place:
    """Where the indexes of an engine are made."""

    def __init__(self, engine: str, uri: str, server: MilvusProcess | None) -> None:
        self.engine, self._uri, self._server = engine, uri, server

    def below(self, folder: Path) -> str:
        """A URI that is always the same for a folder."""
        return self._server.uri(f"i{path_id(str(folder))}") if self._server else str(folder / self._uri)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    name, uri = request.param
    if not uri:
        pytest.skip(f"no URI to test the index engine {name} with")
    for library in NEEDS.get(uri, ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    return Place(name, uri, request.getfixturevalue("milvus_server") if "://" in uri else None)


@pytest.fixture(scope="module")
def shared(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp(place.engine)
    (folder / "encoder").mkdir()
    index = create_index(place.below(folder), meta(), folder / "encoder")
    yield index
    index.close()


@pytest.fixture
def index(shared: Index) -> Index:
    """An empty index; the one before it in the same place was emptied, which takes less time than a new one."""
    shared.remove(shared.list_items().ids)
    return shared


def test_an_empty_index(index: Index) -> None:
    scores, ids = index.search(units(2), 5, SPACES[0])
    assert len(index) == len(index.list_items().ids) == 0
    assert (ids == -1).all()
    assert (scores == -1).all()
    assert list(index.blocks(SPACES[0])) == []
    index.add(batch([], units(0)))
    index.add(batch([4, 5], units(2)))  # seen at once, before ``finish``
    scores, ids = index.search(units(2), 5, SPACES[0])
    assert ids[:, :2].tolist() == [[4, 5], [5, 4]]
    assert (ids[:, 2:] == -1).all()
    assert (scores[:, 2:] == -1).all()


def test_items_come_back_as_they_were(index: Index) -> None:
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
    index.add(NewItems(items, dict.fromkeys(SPACES, vectors)))
    for one, vector in zip(items, vectors, strict=True):
        again = index.item(one.id)
        assert again is not None
        assert (again.path, again.bytes, again.mtime_ns) == (one.path, one.bytes, one.mtime_ns)
        assert (again.width, again.height) == (640, 480)
        assert np.array_equal(again.mask, one.mask)
        assert np.array_equal(index.vectors(np.array([one.id]), SPACES[0])[0], vector)
    listed = index.list_items()
    assert sorted(listed.paths.tolist()) == listed.paths.tolist() == sorted(odd)
    assert dict(zip(listed.paths.tolist(), listed.ids.tolist(), strict=True)) == {one.path: one.id for one in items}
    assert [one and one.id for one in index.items([items[3].id, 12345, items[0].id])] == [
        items[3].id,
        None,
        items[0].id,
    ]
    with pytest.raises(FineSightError, match="no item 12345"):
        index.vectors(np.array([items[0].id, 12345]), SPACES[0])
    for call in (lambda: index.search(vectors, 1, "gem"), lambda: list(index.blocks("gem"))):
        with pytest.raises(FineSightError, match="no features 'gem'"):
            call()


def test_items_are_replaced_and_removed(index: Index) -> None:
    index.add(batch([1, 2, 3], units(3)))
    newer = units(1, seed=8)
    index.add(batch([2], newer))
    assert len(index) == 3
    assert index.search(newer, 1, SPACES[0])[1].tolist() == [[2]]
    assert np.array_equal(index.vectors(np.array([2]), SPACES[0]), newer)
    index.add(NewItems([item(9, item(3).path)], dict.fromkeys(SPACES, units(1, seed=9))))  # a path under a new id
    assert sorted(index.list_items().ids.tolist()) == [1, 2, 9]
    index.remove(np.array([1, 777]))
    assert sorted(contents(index)) == [item(2).path, item(3).path]
    for numbers, rows, words in (([1, 1], 2, "twice"), ([1, 2], 3, "vectors")):
        with pytest.raises(ValueError, match=words):
            index.add(batch(numbers, units(rows)))
    assert len(index) == 2


def test_search_is_brute_force(index: Index) -> None:
    vectors = units(250, clusters=9)
    index.add(batch(list(range(1, 251)), vectors))
    index.finish()
    queries = np.concatenate([units(6, seed=7), vectors[:6]])
    for space, own in ((SPACES[0], vectors), (SPACES[1], vectors[:, ::-1])):
        for k in (1, 40):
            scores, ids = index.search(queries, k, space)
            assert scores.shape == ids.shape == (12, k)
            for query, score, names in zip(queries, scores, ids, strict=True):
                expected, best = nearest(query, own, list(range(1, 251)), k)
                np.testing.assert_allclose(score, expected, atol=1e-5)
                assert names.tolist() == best
        assert np.array_equal(index.search(queries[3], 40, space)[1], ids[3:4])  # one by one is the same
    facts = index.facts()
    assert (facts["items"], facts["kind"], facts["recall_at_10"]) == (len(index), "exact", 1.0)
    assert facts["store"] in INDEX_ENGINES
    assert list(facts["spaces"]) == list(SPACES)  # type: ignore[call-overload]


def test_ties_go_by_id_however_many(index: Index) -> None:
    """Of copies of one image the smallest ids come first, in whatever order they were added."""
    vectors = np.repeat(units(3), [1, 150, 1], axis=0)
    numbers = np.random.default_rng(0).permutation(np.arange(1, 153)).tolist()
    index.add(batch(numbers, vectors))
    scores, ids = index.search(vectors[1:2], 10, SPACES[0])
    assert ids[0].tolist() == sorted(numbers[1:151])[:10]
    assert 1 - 1e-5 < scores[0, -1] <= scores[0, 0] <= 1


def test_blocks_hold_everything_once(index: Index) -> None:
    ids = np.random.default_rng(1).choice(2**52, 300, replace=False).tolist()
    vectors, newer = units(300), units(5, seed=3)
    index.add(batch(ids, vectors))
    index.remove(np.array(ids[::10]))
    index.add(batch(ids[1:50:10], newer))
    rows = dict(zip(ids, vectors[:, ::-1], strict=True)) | dict(zip(ids[1:50:10], newer[:, ::-1], strict=True))
    left = sorted(set(ids) - set(ids[::10]))
    blocks = [(names.tolist(), found) for names, found in index.blocks(SPACES[1], rows=64)]
    assert all(0 < len(names) <= 64 for names, _ in blocks)
    assert sorted(name for names, _ in blocks for name in names) == left
    for names, found in blocks:
        assert np.array_equal(found, np.stack([rows[name] for name in names]))
    assert [names.tolist() for names, _ in index.blocks(SPACES[1], rows=64)] == [names for names, _ in blocks]
    assert np.array_equal(index.vectors(np.array(left), SPACES[1]), np.stack([rows[name] for name in left]))


def test_created_closed_and_opened_again(place: Place, tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    uri = place.below(tmp_path / "new" / "folder")
    assert find_engine(uri) is INDEX_ENGINES[place.engine]
    assert not index_exists(uri)
    with pytest.raises(FineSightError, match="no index"):
        open_index(uri)
    assert not (tmp_path / "new").exists()  # looking makes nothing
    index = create_index(uri, meta(), tmp_path / "encoder")
    assert index_exists(uri)
    with pytest.raises(FineSightError, match="already"):
        create_index(uri, meta(), tmp_path / "encoder")
    index.add(batch([1, 2, 3], units(3)))
    second = open_index(uri)  # beside the first, in one process
    assert len(second) == 3
    index.remove(np.array([2]))
    index.finish()
    assert len(second) == 2
    before = contents(index)
    index.close()
    index.close()
    assert contents(second) == before  # still open
    second.close()
    again = open_index(uri)
    assert again.meta == meta()
    assert contents(again) == before
    again.add(batch([2], units(1)))
    assert len(again) == 3
    again.close()


def _add_slowly(uri: str, encoder: str, progress: str) -> None:
    """Add a batch after the other until the process is killed."""
    index = create_index(uri, meta(), Path(encoder))
    for start in range(1, 100_000, 20):
        index.add(batch(list(range(start, start + 20)), units(20, seed=start)))
        write_atomic(Path(progress), str(start + 19))  # or it might be killed when the file is empty


def test_killed_while_adding(place: Place, tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    uri, progress = place.below(tmp_path), tmp_path / "progress"
    start_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_add_slowly, args=(uri, str(tmp_path / "encoder"), str(progress)), daemon=True)
    process.start()
    deadline = time.monotonic() + TIMEOUT
    while not progress.exists() or int(progress.read_text()) < 200:
        assert process.is_alive(), "ended too early"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.003)
    with pytest.raises(FineSightError, match="Another process"):
        open_index(uri).add(batch([1], units(1)))
    process.kill()
    process.join()
    added = int(progress.read_text())
    index = open_index(uri)
    ids = index.list_items().ids.tolist()
    assert set(range(1, added + 1)) <= set(ids)  # what was committed is there
    assert len(ids) == len(set(ids)) == len(index)
    assert len(ids) % 20 == 0  # and no batch half
    for start in range(1, added + 41, 20):  # again: nothing doubles
        index.add(batch(list(range(start, start + 20)), units(20, seed=start)))
    index.finish()
    assert sorted(index.list_items().ids.tolist()) == list(range(1, max(added + 40, len(ids)) + 1))
    assert index.search(units(20, seed=1)[:1], 1, SPACES[0])[1].tolist() == [[1]]
    index.close()


def test_follows_a_folder_and_is_searched(place: Place, tmp_path: Path) -> None:
    """Updates change what changed, and answers are those of the features themselves."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(10):
        (images / f"{number:02d}.png").write_bytes(drawn(size=(40 + 4 * number, 40), seed=number))
    run = small_encoder(tmp_path / "run")
    embedder = TorchEmbedder.load(run)
    index = open_or_create(place.below(tmp_path), embedder, run, images)
    first = update_index(index, embedder, images, workers=1)
    (images / "00.png").write_bytes((images / "01.png").read_bytes())
    (images / "02.png").unlink()
    (images / "new.png").write_bytes((images / "03.png").read_bytes())
    second, third = (update_index(index, embedder, images, workers=1) for _ in range(2))
    for update, counts in ((first, (10, 0, 0, 0)), (second, (1, 1, 1, 8)), (third, (0, 0, 0, 10))):
        assert (update.added, update.changed, update.removed, update.kept) == counts
    assert open_embedder("torch", index).fingerprint == embedder.fingerprint
    searcher = Searcher(index, embedder)
    files = sorted(images.iterdir())
    for by in ("rationale-gem", "average"):
        features = embedder.encoder.embed(files, by).numpy().astype(np.float64)
        scores, _ = nearest(features[4], features, list(range(10)), 10)
        hits = searcher.by_picture(files[4], by=by).hits
        np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-5)
        assert hits[0].path == files[4].name
        assert searcher.by_picture(files[4], by=by, min_score=scores[4] - 1e-6).hits == hits[:5]
        (copy,) = searcher.by_picture(files[4], 1, by=by, diversity=0.5).hits
        assert copy == hits[0]
    index.close()


# --- other distributions ----------------------------------------------------------------------------------------------

TOY = """
import os
from finesight.search.engines import INDEX_ENGINES, IndexEngine

@INDEX_ENGINES.decorator("toy")
class ToyEngine(IndexEngine):
    new_forms = forms = ("toy://NAME",)

    @classmethod
    def matches(cls, uri):
        return uri.startswith("toy://")

    @classmethod
    def index_class(cls):
        from toy_storage import ToyIndex

        return ToyIndex
"""
STORAGE = """
import os
from finesight.search.faiss_index import FaissIndex

class ToyIndex(FaissIndex):
    open = classmethod(lambda cls, uri: cls(os.environ["TOY"] + uri[6:]))
    exists = classmethod(lambda cls, uri: os.path.exists(os.environ["TOY"] + uri[6:]))

    @classmethod
    def create(cls, uri, meta, encoder):
        return super().create(os.environ["TOY"] + uri[6:], meta, encoder)
"""


def test_an_engine_of_another_distribution(tmp_path: Path) -> None:
    """An entry point is all it takes: help texts name the engine, and commands use it."""
    (tmp_path / "toy_index.py").write_text(TOY)
    (tmp_path / "toy_storage.py").write_text(STORAGE)
    info = tmp_path / "toy_index-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-index\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[finesight.indexes]\ntoy = toy_index\n")
    images, run = tmp_path / "images", small_encoder(tmp_path / "run")
    images.mkdir()
    for number in range(3):
        (images / f"{number}.png").write_bytes(drawn(seed=number))
    program = f"""
from typer.testing import CliRunner
from finesight.cli.main import app
for words in (["index", "--help"], ["clusters", "--help"], ["index", {str(run)!r}, {str(images)!r}, "--index", "toy://x"],
              ["search", "toy://x", {str(images / "1.png")!r}, "-k", "1"]):
    print(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
"""
    env = environment(TOY=f"{tmp_path}/toys-", COLUMNS="200")
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env.get('PYTHONPATH', '')}"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A folder, milvus://host:port/collection, FILE.db, s3://BUCKET/NAME (gs, hf), or toy://NAME." in done.stdout
    assert "FILE.db, s3://BUCKET/NAME (gs, hf, https), or toy://NAME." in done.stdout
    assert "toy://x: 3 images (3 added" in done.stdout
    assert "1.png" in done.stdout.splitlines()[-2]
    assert (tmp_path / "toys-x" / "index.json").is_file()


def test_help_names_the_forms_of_all_engines() -> None:
    for engine in INDEX_ENGINES.values():
        for text, forms in ((uri_help(), engine.forms), (uri_help(new=True), engine.new_forms)):
            assert all(form.lower() in text.lower() for form in forms)
    assert uri_help(new=True).startswith("A folder, ")
    assert find_engine("some/where") is find_engine("runs/a.b") is INDEX_ENGINES["faiss"]
    for uri in ("milvus://host/x", "milvuss://host:1/x", "FILE.db"):
        assert find_engine(uri) is INDEX_ENGINES["milvus"]
