"""An index follows its folder: nothing is embedded twice, lost or doubled, whatever happens on the way."""

from __future__ import annotations

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

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.types import Box, Embedding, View
from finesight.search import build
from finesight.search import image_files as files
from finesight.search.build import open_or_create, read_view, update_index
from finesight.search.engines import index_exists, open_index
from finesight.search.faiss_index import FaissIndex
from finesight.search.image_files import ids_of, item_file, path_id
from indexes import contents, small_encoder, update_slowly
from processes import start_server


class Counting(TorchEmbedder):
    """Remembers how many views it was shown."""

    seen = 0

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        self.seen += len(views)
        return super().encode(views, regions)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("run"))


@pytest.fixture
def engine(run: Path) -> Counting:
    return Counting.load(run)


@pytest.fixture
def folder(unlabeled: Path, tmp_path: Path) -> Path:
    """24 images, one broken one, and a text."""
    return Path(shutil.copytree(unlabeled, tmp_path / "photos"))


@pytest.fixture
def index(engine: Counting, run: Path, folder: Path, tmp_path: Path) -> FaissIndex:
    made = open_or_create(tmp_path / "index", engine, run, folder)
    assert isinstance(made, FaissIndex)
    return made


def counts(report: build.Report) -> tuple[int, int, int, int, int]:
    return report.added, report.changed, report.removed, report.kept, len(report.skipped)


def test_only_what_changed_is_embedded(index: FaissIndex, engine: Counting, folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    skipped = tmp_path / "skipped.csv"
    report = update_index(index, engine, folder, callback=lambda *progress: told.append(progress), skipped_file=skipped)
    assert counts(report) == (24, 0, 0, 0, 2)
    assert engine.seen == 24
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
        (embedding,) = engine.encode([read_view(folder / path, 32)[0]])
        assert (own, average) == (
            embedding.features["rationale-gem"].tobytes(),
            embedding.features["average"].tobytes(),
        )

    engine.seen = 0
    assert counts(update_index(index, engine, folder)) == (0, 0, 0, 24, 2)
    assert engine.seen == 0
    (folder / "image-03.png").unlink()
    shutil.copy(folder / "image-05.png", folder / "image-04.png")
    (folder / "deep/er").mkdir(parents=True)
    shutil.copy(folder / "image-06.png", folder / "deep/er/new ü.png")
    report = update_index(index, engine, folder)
    assert counts(report) == (1, 1, 1, 22, 2)
    assert engine.seen == 2
    second = contents(index)
    assert set(first) - set(second) == {"image-03.png"}
    assert set(second) - set(first) == {"deep/er/new ü.png"}
    assert [path for path in first if path in second and first[path] != second[path]] == ["image-04.png"]
    assert second["image-04.png"][-2:] == second["image-05.png"][-2:]
    assert second["image-04.png"][0] == first["image-04.png"][0]  # it keeps its id


def test_an_image_that_breaks_is_dropped_and_comes_back(index: FaissIndex, engine: Counting, folder: Path) -> None:
    update_index(index, engine, folder)
    good = (folder / "image-00.png").read_bytes()
    (folder / "image-00.png").write_bytes(good[:60])
    report = update_index(index, engine, folder)
    assert counts(report) == (0, 0, 1, 23, 3)
    assert "image-00.png" not in contents(index)
    (folder / "image-00.png").write_bytes(good)
    assert counts(update_index(index, engine, folder)) == (1, 0, 0, 23, 2)


def test_a_folder_that_cannot_be_read_has_not_vanished(
    index: FaissIndex, engine: Counting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closed").mkdir()
    shutil.copy(folder / "image-00.png", folder / "closed/a.png")
    update_index(index, engine, folder)
    real = os.scandir

    def scandir(path: object) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    report = update_index(index, engine, folder)
    assert counts(report)[:4] == (0, 0, 0, 25)
    assert "closed/a.png" in contents(index)


def test_an_empty_folder_does_not_empty_the_index(index: FaissIndex, engine: Counting, folder: Path) -> None:
    """More likely a disk that is not there than a wish."""
    update_index(index, engine, folder)
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(FineSightError, match="empty"):
        update_index(index, engine, folder)
    assert len(index) == 24


def test_links_that_leave_the_folder(index: FaissIndex, engine: Counting, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "secret/private.png")
    (folder / "out.png").symlink_to(tmp_path / "secret/private.png")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "in.png").symlink_to(folder / "image-00.png")
    (folder / "loop").symlink_to(folder)
    report = update_index(index, engine, folder)
    reasons = dict(report.skipped)
    assert reasons["out.png"] == reasons["out/private.png"] == files.OUTSIDE
    held = contents(index)
    assert "in.png" in held
    assert not [path for path in held if path.startswith(("out", "loop"))]
    assert item_file(folder, "in.png") == (folder / "image-00.png").resolve()
    for path in ("out.png", "out/private.png", "../secret/private.png", "missing.png", "", "/etc/passwd"):
        assert item_file(folder, path) is None, path


def test_a_list_may_name_files_in_full_but_not_outside(
    engine: Counting, run: Path, folder: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "outside.png")
    names = [folder / "image-01.png", "image-02.png", tmp_path / "outside.png", "../outside.png"]
    (folder / "list.txt").write_text("\n".join(map(str, names)) + "\n")
    index = open_or_create(tmp_path / "index", engine, run, folder)
    report = update_index(index, engine, folder / "list.txt")
    assert sorted(contents(index)) == ["image-01.png", "image-02.png"]
    assert len(report.skipped) == 2


def test_a_file_that_is_being_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again until it holds still; if it never does, it is left for the next time."""
    file = folder / "image-00.png"
    real, calls = build.picture_view, []

    def writing(times: int) -> Callable[..., View]:
        def view(stream: object, resolution: int) -> View:
            seen = real(stream, resolution)
            calls.append(1)
            if len(calls) <= times:
                os.utime(file, ns=(0, 1000 * times + len(calls)))
            return seen

        return view

    monkeypatch.setattr(build, "picture_view", writing(1))
    seen = read_view(file, 32)
    assert isinstance(seen, tuple)
    assert seen[1] == (file.stat().st_size, 1001)
    calls.clear()
    monkeypatch.setattr(build, "picture_view", writing(99))
    assert str(read_view(file, 32)) == "it changed while it was read"
    os.mkfifo(folder / "pipe.png")
    assert str(read_view(folder / "pipe.png", 32)) == "not a regular file"
    assert "no such file" in str(read_view(folder / "gone.png", 32))


def test_ids_that_collide_move_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "path_id", lambda path: 2**52 - 1 if path.startswith("a") else 7)
    ids = ids_of(["a1", "a2", "a3", "b", "old"], {"old": 0})
    assert ids == {"a1": 2**52 - 1, "a2": 1, "a3": 2, "b": 7, "old": 0}
    assert ids_of(["a2", "a1"], ids) == {"a2": 1, "a1": 2**52 - 1}


def test_colliding_images_are_both_kept(
    index: FaissIndex, engine: Counting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "path_id", lambda path: len(path) % 2)
    update_index(index, engine, folder)
    assert len(contents(index)) == 24
    before = contents(index)
    os.utime(folder / "image-09.png")
    update_index(index, engine, folder)
    after = contents(index)
    assert [path for path in before if before[path][3:] != after[path][3:]] == []
    assert {path: facts[0] for path, facts in before.items()} == {path: facts[0] for path, facts in after.items()}


def test_another_encoder_and_another_folder_are_refused(
    index: FaissIndex, engine: Counting, folder: Path, tmp_path: Path
) -> None:
    other = TorchEmbedder.load(small_encoder(tmp_path / "other", seed=5))
    with pytest.raises(FineSightError, match="made by another encoder"):
        update_index(index, other, folder)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    with pytest.raises(FineSightError, match="belongs to one folder"):
        update_index(index, engine, copy)
    (tmp_path / "alias").symlink_to(folder)
    assert update_index(index, engine, tmp_path / "alias").added == 24  # the same folder by another name


def test_stopping_keeps_what_is_done(index: FaissIndex, engine: Counting, folder: Path) -> None:
    report = update_index(index, engine, folder, stop=lambda: engine.seen >= 7)
    assert report.stopped
    assert report.added == len(index) == 7
    report = update_index(index, engine, folder)
    assert counts(report) == (17, 0, 0, 7, 2)
    assert engine.seen == 24


def test_killed_again_and_again(run: Path, engine: Counting, folder: Path, tmp_path: Path) -> None:
    """At no matter what moment: in the end it is the index of a run that nothing disturbed."""
    for n in range(24):
        shutil.copy(folder / f"image-{n:02d}.png", folder / f"more-{n:02d}.png")
    whole = open_or_create(tmp_path / "whole", engine, run, folder)
    update_index(whole, engine, folder)
    where = tmp_path / "killed"
    start_server()
    context = multiprocessing.get_context("forkserver")
    dice, sizes = random.Random(0), []
    for _ in range(12):
        process = context.Process(target=update_slowly, args=(str(where), str(run), str(folder)), daemon=True)
        process.start()
        deadline = time.monotonic() + 60
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
    assert len([size for size in sizes if 0 < size < 48]) >= 2, sizes  # kills that struck in the middle
    index = open_index(where)
    engine.seen = 0
    update_index(index, engine, folder)
    assert engine.seen == 48 - sizes[-1]
    assert contents(index) == contents(whole)
    assert isinstance(index, FaissIndex)
    assert index._now().state.rows == 48  # no row twice


def test_where_an_index_is(index: FaissIndex, run: Path, tmp_path: Path) -> None:
    holder = Path(shutil.copytree(run, tmp_path / "holder"))
    with pytest.raises(FineSightError, match="has no index yet"):
        open_index(holder)
    shutil.copytree(tmp_path / "index", holder / "index")
    assert open_index(holder).meta == open_index(str(tmp_path / "index")).meta == index.meta
    assert np.array_equal(open_index(holder).list_items().ids, index.list_items().ids)
    with pytest.raises(FineSightError, match="nothing is there"):
        open_index(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FineSightError, match="no index in"):
        open_index(tmp_path / "empty")
