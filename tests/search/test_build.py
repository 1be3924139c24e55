"""An index follows its folder: nothing is embedded twice, lost or doubled, whatever happens on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from close import same_rows
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.features.types import Box, Embedding, View
from finesight.search.base import Index, IndexItem, NewItems
from finesight.search.build import IndexUpdate, open_or_create, read_view, update_index
from finesight.search.clusters import cluster
from finesight.search.duplicates import find_duplicates
from finesight.search.engines import index_exists, open_index
from finesight.search.faiss_index import FaissIndex
from finesight.search.image_files import OUTSIDE, assign_ids, item_file, path_id
from finesight.search.searcher import Searcher
from indexes import contents, small_encoder, update_slowly
from processes import TIMEOUT, TooLate, in_time, start_server


class Counting(TorchEmbedder):
    """Remembers how many views it was shown."""

    def __init__(self, encoder: Encoder, fingerprint: str) -> None:
        super().__init__(encoder, fingerprint)
        self.seen, self.calls = 0, list[int]()

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        self.seen += len(views)
        self.calls.append(len(views))
        return super().encode(views, regions)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("run"))


@pytest.fixture
def embedder(run: Path) -> Counting:
    """Bits can be compared: they do not depend on what is embedded together."""
    return Counting.load(run, exact=True)


@pytest.fixture
def folder(unlabeled: Path, tmp_path: Path) -> Path:
    """24 images, one broken one, and a text."""
    return Path(shutil.copytree(unlabeled, tmp_path / "photos"))


@pytest.fixture
def index(embedder: Counting, run: Path, folder: Path, tmp_path: Path) -> FaissIndex:
    made = open_or_create(tmp_path / "index", embedder, run, folder)
    assert isinstance(made, FaissIndex)
    return made


def counts(report: IndexUpdate) -> tuple[int, int, int, int, int]:
    return report.added, report.changed, report.removed, report.kept, len(report.skipped)


def test_images_do_not_wait_for_others_that_take_long_to_read(embedder: Counting, run: Path, tmp_path: Path) -> None:
    """The network begins with what is there: with 32 at once, it would wait for all."""
    folder, noise = tmp_path / "mixed", np.random.default_rng(0)
    folder.mkdir()
    for i in range(30):
        side = 40 if i < 10 else 1500
        Image.fromarray(noise.integers(0, 256, (side, side, 3), np.uint8)).save(folder / f"{i:02d}.png")
    index = open_or_create(tmp_path / "mixed-index", embedder, run, folder)
    assert update_index(index, embedder, folder, workers=1).added == embedder.seen == 30
    assert 8 <= embedder.calls[0] < 30


def test_only_what_changed_is_embedded(index: FaissIndex, embedder: Counting, folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    skipped = tmp_path / "skipped.csv"
    report = update_index(index, embedder, folder, callback=lambda *one: told.append(one), skipped_file=skipped)
    assert counts(report) == (24, 0, 0, 0, 2)
    assert embedder.seen == 24
    assert dict(report.skipped).keys() == {"broken.png", "notes.txt"}
    assert skipped.read_text().splitlines()[1].startswith("broken.png,")
    assert told[0][0] == "listing"
    assert ("embedding", 25, 25) in told
    assert told[-1] == ("finishing", 1, 1)
    first = contents(index)
    for path, (number, size, mtime_ns, width, _, own, average) in first.items():
        status = (folder / path).stat()
        assert (size, mtime_ns, width) == (status.st_size, status.st_mtime_ns, 40)
        assert number == path_id(path) < 2**52
        (embedding,) = embedder.encode([read_view(folder / path, 32)[0]])
        assert (own, average) == (
            embedding.features["rationale-gem"].tobytes(),
            embedding.features["average"].tobytes(),
        )

    embedder.seen = 0
    assert counts(update_index(index, embedder, folder)) == (0, 0, 0, 24, 2)
    assert embedder.seen == 0
    (folder / "image-03.png").unlink()
    shutil.copy(folder / "image-05.png", folder / "image-04.png")
    (folder / "deep/er").mkdir(parents=True)
    shutil.copy(folder / "image-06.png", folder / "deep/er/new ü.png")
    report = update_index(index, embedder, folder)
    assert counts(report) == (1, 1, 1, 22, 2)
    assert embedder.seen == 2
    second = contents(index)
    assert set(first) - set(second) == {"image-03.png"}
    assert set(second) - set(first) == {"deep/er/new ü.png"}
    assert [path for path in first if path in second and first[path] != second[path]] == ["image-04.png"]
    assert second["image-04.png"][-2:] == second["image-05.png"][-2:]
    assert second["image-04.png"][0] == first["image-04.png"][0]  # it keeps its id


def test_an_image_that_breaks_is_dropped_and_comes_back(index: FaissIndex, embedder: Counting, folder: Path) -> None:
    update_index(index, embedder, folder)
    good = (folder / "image-00.png").read_bytes()
    (folder / "image-00.png").write_bytes(good[:60])
    report = update_index(index, embedder, folder)
    assert counts(report) == (0, 0, 1, 23, 3)
    assert "image-00.png" not in contents(index)
    (folder / "image-00.png").write_bytes(good)
    assert counts(update_index(index, embedder, folder)) == (1, 0, 0, 23, 2)


def test_a_folder_that_cannot_be_read_has_not_vanished(
    index: FaissIndex, embedder: Counting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closed").mkdir()
    shutil.copy(folder / "image-00.png", folder / "closed/a.png")
    update_index(index, embedder, folder)
    real = os.scandir

    def scandir(path: object) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    report = update_index(index, embedder, folder)
    assert counts(report)[:4] == (0, 0, 0, 25)
    assert "closed/a.png" in contents(index)


def test_an_empty_folder_does_not_empty_the_index(index: FaissIndex, embedder: Counting, folder: Path) -> None:
    """More likely a disk that is not there than a wish."""
    update_index(index, embedder, folder)
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(FineSightError, match="empty"):
        update_index(index, embedder, folder)
    assert len(index) == 24


def test_links_that_leave_the_folder(index: FaissIndex, embedder: Counting, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "secret/private.png")
    (folder / "out.png").symlink_to(tmp_path / "secret/private.png")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "in.png").symlink_to(folder / "image-00.png")
    (folder / "loop").symlink_to(folder)
    report = update_index(index, embedder, folder)
    reasons = dict(report.skipped)
    assert reasons["out.png"] == reasons["out/private.png"] == OUTSIDE
    held = contents(index)
    assert "in.png" in held
    assert not [path for path in held if path.startswith(("out", "loop"))]
    assert item_file(folder, "in.png") == (folder / "image-00.png").resolve()
    for path in ("out.png", "out/private.png", "../secret/private.png", "missing.png", "", "/etc/passwd"):
        assert item_file(folder, path) is None, path


def test_a_list_may_name_files_in_full_but_not_outside(
    embedder: Counting, run: Path, folder: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "outside.png")
    names = [folder / "image-01.png", "image-02.png", tmp_path / "outside.png", "../outside.png"]
    (folder / "list.txt").write_text("\n".join(map(str, names)) + "\n")
    index = open_or_create(tmp_path / "index", embedder, run, folder)
    report = update_index(index, embedder, folder / "list.txt")
    assert sorted(contents(index)) == ["image-01.png", "image-02.png"]
    assert len(report.skipped) == 2


def test_a_file_that_is_being_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again until it holds still; if it never does, it is left for the next time."""
    file, real, calls = folder / "image-00.png", os.fstat, []

    def write_after(times: int) -> Callable[[int], os.stat_result]:
        """Change the file after each of the first ``times`` looks at it, as a program that writes it does."""

        def fstat(handle: int) -> os.stat_result:
            status = real(handle)
            calls.append(handle)
            if len(calls) <= times:
                os.utime(file, ns=(0, 1000 * times + len(calls)))
            return status

        calls.clear()
        return fstat

    monkeypatch.setattr(os, "fstat", write_after(1))
    result = read_view(file, 32)
    assert isinstance(result, tuple)
    assert result[1] == (file.stat().st_size, 1001)
    monkeypatch.setattr(os, "fstat", write_after(99))
    assert str(read_view(file, 32)) == "it changed while it was read"
    monkeypatch.undo()
    os.mkfifo(folder / "pipe.png")
    assert str(read_view(folder / "pipe.png", 32)) == "not a regular file"
    assert "no such file" in str(read_view(folder / "gone.png", 32))


def test_ids_that_collide_move_on(index: FaissIndex, embedder: Counting, folder: Path) -> None:
    last = path_id("a")
    ids = assign_ids(["a", "b"], {"x": last, "y": (last + 1) % 2**52})
    assert ids == {"a": (last + 2) % 2**52, "b": path_id("b")}
    assert assign_ids(["a"], ids) == {"a": ids["a"]}  # an id that was given is kept
    status = (folder / "image-00.png").stat()
    taken = IndexItem(
        path_id("image-09.png"),
        "image-00.png",
        status.st_size,
        status.st_mtime_ns,
        40,
        30,
        np.zeros((4, 4), np.float32),
    )
    vectors = np.eye(1, index.meta.dimension, dtype=np.float32)
    index.add(NewItems([taken], dict.fromkeys(index.meta.spaces, vectors)))
    assert counts(update_index(index, embedder, folder))[:4] == (23, 0, 0, 1)
    held = contents(index)
    assert len(held) == 24
    assert held["image-00.png"][0] == path_id("image-09.png")
    assert held["image-09.png"][0] == path_id("image-09.png") + 1
    os.utime(folder / "image-09.png")
    update_index(index, embedder, folder)
    assert contents(index)["image-09.png"][0] == path_id("image-09.png") + 1


def test_another_encoder_and_another_folder_are_refused(
    index: FaissIndex, embedder: Counting, folder: Path, tmp_path: Path
) -> None:
    other = TorchEmbedder.load(small_encoder(tmp_path / "other", seed=5))
    with pytest.raises(FineSightError, match="made by another encoder"):
        update_index(index, other, folder)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    with pytest.raises(FineSightError, match="belongs to one folder"):
        update_index(index, embedder, copy)
    (tmp_path / "alias").symlink_to(folder)
    assert update_index(index, embedder, tmp_path / "alias").added == 24  # the same folder by another name


def test_stopping_keeps_what_is_done(index: FaissIndex, embedder: Counting, folder: Path) -> None:
    report = update_index(index, embedder, folder, stop=lambda: embedder.seen >= 7, commit_images=7)
    assert report.stopped
    assert report.added == len(index) == 7
    report = update_index(index, embedder, folder)
    assert counts(report) == (17, 0, 0, 7, 2)
    assert embedder.seen == 24


@pytest.mark.flaky(reruns=2)  # a machine that needs five seconds for some images embeds what it has in between
def test_images_go_through_the_network_together(run: Path, folder: Path, tmp_path: Path) -> None:
    """Never one while there are more, whatever is committed at a time; the features are the same but for rounding."""
    for n in range(24):
        shutil.copy(folder / f"image-{n:02d}.png", folder / f"more-{n:02d}.png")
    found = {}
    for exact, commit in ((True, 64), (False, 64), (False, 40), (False, 33)):
        embedder = Counting.load(run, exact=exact)
        index = open_or_create(tmp_path / f"{exact}-{commit}", embedder, run, folder)
        update_index(index, embedder, folder, commit_images=commit)
        assert sum(embedder.calls) == 48
        assert all(8 <= calls <= 32 for calls in embedder.calls[:-1])
        found[exact, commit] = contents(index)
    for rows in found.values():
        for path, (*facts, own, average) in found[True, 64].items():
            assert rows[path][:4] == tuple(facts[:4])
            for bits, other in ((own, rows[path][-2]), (average, rows[path][-1])):
                assert same_rows(*(np.frombuffer(one, np.float32)[None] for one in (other, bits)))


def test_features_of_different_widths(folder: Path, tmp_path: Path) -> None:
    """Two maps give more numbers than the average beside them, which has the first map's alone."""
    run = small_encoder(tmp_path / "run", "rationale-gem-two-maps")
    embedder = TorchEmbedder.load(run, exact=True)
    index = open_or_create(tmp_path / "wide", embedder, run, folder)
    update_index(index, embedder, folder)
    widths = {space: index.meta.width(space) for space in index.meta.spaces}
    assert widths == {"rationale-gem-two-maps": 96 + 192, "average": 96}
    index.finish()
    index = open_index(tmp_path / "wide")
    for by, width in widths.items():
        found = Searcher(index, embedder).by_picture(folder / "image-03.png", 1, by=by)
        assert found.hits[0].path == "image-03.png"
        assert found.hits[0].score == pytest.approx(1, abs=1e-5)
        assert index.vectors(index.list_items().ids, by).shape == (24, width)
        with pytest.raises(FineSightError, match=f"must be {width} finite numbers"):
            Searcher(index).by_vector(np.ones(width + 1, np.float32), by=by)
    assert find_duplicates(index, 1.0) == []
    assert len(cluster(index, count=3)) == 3


@pytest.mark.slow
def test_killed_again_and_again(run: Path, embedder: Counting, folder: Path, tmp_path: Path) -> None:
    """At no matter what moment: in the end it is the index of a run that nothing disturbed."""
    for n in range(24):
        shutil.copy(folder / f"image-{n:02d}.png", folder / f"more-{n:02d}.png")
    whole = open_or_create(tmp_path / "whole", embedder, run, folder)
    update_index(whole, embedder, folder)
    start_server()
    in_time(lambda place: kill_again_and_again(place / "killed", whole, run, embedder, folder), tmp_path)


def kill_again_and_again(where: Path, whole: Index, run: Path, embedder: Counting, folder: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    dice, sizes = random.Random(0), []
    for _ in range(5):
        process = context.Process(target=update_slowly, args=(str(where), str(run), str(folder)), daemon=True)
        process.start()
        deadline = time.monotonic() + TIMEOUT
        base = len(open_index(where)) if index_exists(where) else 0
        while process.is_alive() and time.monotonic() < deadline:
            if index_exists(where) and len(open_index(where)) > base:
                break
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        process.kill()
        process.join()
        sizes.append(len(open_index(where)))
        if process.exitcode == 0:
            break
    assert sizes == sorted(sizes)
    if len([size for size in sizes if 0 < size < 48]) < 2:  # kills that struck in the middle
        raise TooLate
    index = open_index(where)
    embedder.seen = 0
    update_index(index, embedder, folder)
    assert embedder.seen == 48 - sizes[-1]
    assert contents(index) == contents(whole)
    assert isinstance(index, FaissIndex)
    assert index.snapshot().state.rows == 48  # no row twice


def test_where_an_index_is(index: FaissIndex, run: Path, tmp_path: Path) -> None:
    holder = Path(shutil.copytree(run, tmp_path / "holder"))
    with pytest.raises(FineSightError, match="has no index yet"):
        open_index(holder)
    shutil.copytree(tmp_path / "index", holder / "index")
    assert open_index(holder).meta == open_index(str(tmp_path / "index")).meta == index.meta
    assert np.array_equal(open_index(holder).list_items().ids, index.list_items().ids)
    # of a run with features before and after training, those that the verdict keeps
    other = small_encoder(tmp_path / "other", seed=5)
    before = open_or_create(holder / "frozen" / "index", TorchEmbedder.load(other), other, index.meta.root).meta
    assert open_index(holder).meta == index.meta
    for kept, meta in (("frozen", before), ("trained", index.meta)):
        (holder / "verdict.json").write_text(json.dumps({"kept": kept}))
        assert open_index(holder).meta == meta
    shutil.rmtree(holder / "index")
    assert open_index(holder).meta == before  # training has not ended yet
    with pytest.raises(FineSightError, match="nothing is there"):
        open_index(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FineSightError, match="no index in"):
        open_index(tmp_path / "empty")
