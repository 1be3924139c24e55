"""Watching a folder: what is new, changed and gone, and what is still being copied."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.search.build import open_or_create, update_index
from finesight.search.watch import RETRIES, FolderWatch
from indexes import small_encoder
from serving import drawn

OLD = time.time() - 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        file = tmp_path / "photos" / f"{number}.png"
        file.write_bytes(drawn(seed=number))
        os.utime(file, (OLD, OLD))
    return tmp_path / "photos"


def test_new_changed_and_gone(folder: Path) -> None:
    watch = FolderWatch(folder, interval=0, settle=0)
    first = watch.look()
    assert first.ready == {"0.png", "1.png", "2.png"}
    watch.take(first)
    assert not watch.look()
    (folder / "0.png").unlink()
    (folder / "1.png").write_bytes(drawn(seed=9))
    (folder / "new.png").write_bytes(drawn(seed=4))
    (folder / "notes.txt").write_text("no image")
    change = watch.look()
    assert (change.ready, change.gone) == ({"1.png", "new.png"}, {"0.png"})
    assert watch.look().ready == {"1.png", "new.png"}  # as long as the index has not taken it
    watch.take(change)
    assert not watch.look()


def test_what_is_being_copied_waits(folder: Path) -> None:
    watch = FolderWatch(folder, interval=60, settle=0.2)
    watch.take(watch.look())
    assert 50 < watch.wait() <= 60
    half = drawn(seed=5)[:40]
    (folder / "copied.png").write_bytes(half)
    change = watch.look()
    assert (change.ready, change.unsettled) == (set(), {"copied.png"})
    assert not change
    assert watch.wait() <= 0.2  # it is looked at again soon
    time.sleep(0.25)
    (folder / "copied.png").write_bytes(drawn(seed=5))  # it grew: not yet
    assert watch.look().unsettled == {"copied.png"}
    time.sleep(0.25)
    assert watch.look().ready == {"copied.png"}
    fresh = FolderWatch(folder, settle=0.2)  # at the first look the files' own times tell
    assert fresh.look().unsettled == set()
    (folder / "fresh.png").write_bytes(half)
    assert FolderWatch(folder, settle=60).look().unsettled == {"copied.png", "fresh.png"}


def test_what_could_not_be_read_is_read_again_with_growing_pauses(folder: Path) -> None:
    watch = FolderWatch(folder, interval=0, settle=0, retry=0.02)
    half = {"1.png", "elsewhere.png"}
    change, taken = watch.look(), []
    while len(taken) < 3:
        taken.append(time.monotonic())
        watch.take(change, half)
        while not (change := watch.look()):
            time.sleep(0.005)
        assert (change.ready, change.gone, change.is_retry) == ({"1.png"}, set(), True)
    assert taken[1] - taken[0] >= 0.02
    assert taken[2] - taken[1] >= 0.08
    (folder / "2.png").unlink()
    assert not watch.look().is_retry
    watch.take(change)  # it could be read
    watch.take(watch.look())
    time.sleep(1.3)
    assert not watch.look()


def test_what_can_never_be_read_is_left_alone_in_the_end(folder: Path) -> None:
    watch = FolderWatch(folder, interval=0, settle=0, retry=0)
    watch.take(watch.look(), {"1.png"})
    for _ in range(RETRIES):
        watch.take(watch.look(), {"1.png"})
    assert not watch.look()
    (folder / "1.png").write_bytes(drawn(seed=9))  # something else: it counts anew
    change = watch.look()
    assert change.ready == {"1.png"}
    watch.take(change, {"1.png"})
    assert watch.look().ready == {"1.png"}


def test_a_folder_that_is_empty_or_away(folder: Path) -> None:
    watch = FolderWatch(folder, interval=0, settle=0)
    watch.take(watch.look())
    moved = folder.rename(folder.parent / "elsewhere")
    with pytest.raises(FineSightError, match="does not exist"):
        watch.look()
    folder.mkdir()
    with pytest.raises(FineSightError, match="is empty"):
        watch.look()
    folder.rmdir()
    moved.rename(folder)
    assert not watch.look()  # all is as it was


def test_the_index_keeps_what_it_has_of_files_that_are_left_alone(folder: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    embedder = TorchEmbedder.load(run)
    index = open_or_create(run / "index", embedder, run, folder)
    update_index(index, embedder, folder)
    before = dict(zip(index.list_items().paths.tolist(), index.list_items().mtimes.tolist(), strict=True))
    (folder / "1.png").write_bytes(drawn(seed=9)[:40])
    (folder / "half.png").write_bytes(drawn(seed=8)[:40])
    report = update_index(index, embedder, folder, leave={"1.png", "half.png"})
    assert (report.added, report.changed, report.removed, report.kept, report.skipped) == (0, 0, 0, 3, [])
    assert dict(zip(index.list_items().paths.tolist(), index.list_items().mtimes.tolist(), strict=True)) == before


def test_a_folder_of_links_that_leave_it_is_said_to_be_one(folder: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "0.png").symlink_to(folder / "0.png")
    watch = FolderWatch(links, interval=0, settle=0)
    with pytest.raises(FineSightError, match=r"links can be searched, the first is 0\.png: it lies outside the folder"):
        watch.look()
    (links / "1.png").write_bytes(drawn(seed=1))
    assert watch.look().ready == {"1.png"}
