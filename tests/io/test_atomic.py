"""Files are whole or not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from finesight.io.atomic import atomic_path, require_writable, write_atomic
from processes import killed_while_writing


def fail_half_way(target: Path) -> None:
    with atomic_path(target) as scratch:
        scratch.write_text("half")
        raise RuntimeError


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("content", [b"\x00\xff bytes", "text é"])
def test_content_and_nothing_else_is_there(tmp_path: Path, content: bytes | str, sync: bool) -> None:
    file = tmp_path / "new" / "a.bin"
    write_atomic(file, b"before")
    write_atomic(file, content, sync=sync)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [path.name for path in file.parent.iterdir()] == ["a.bin"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomic(file, "before")
    with pytest.raises(RuntimeError):
        fail_half_way(file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_killed_process_left_goes_before_the_next_work(tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    killed_while_writing(file)
    [left] = tmp_path.iterdir()
    elsewhere = tmp_path / f".features.npz.1{'0' * 10}.tmp.npz"  # of another machine
    elsewhere.write_text("half")
    with atomic_path(file) as mine:
        mine.write_text("mine")
        require_writable(file)  # another call of a process that runs
        assert set(tmp_path.iterdir()) == {mine, elsewhere}
    assert left not in set(tmp_path.iterdir())
    assert set(tmp_path.iterdir()) == {file, elsewhere}


def test_folders_appear_whole(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "folder") as scratch:
        scratch.mkdir()
        (scratch / "one").write_text("1")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "one").read_text() == "1"
    with pytest.raises(RuntimeError):
        fail_half_way(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_replaced_and_never_away(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    away, done = [], threading.Event()

    def make(number: int) -> None:
        with atomic_path(target, replace_folder=True) as scratch:
            scratch.mkdir()
            (scratch / f"{number}").write_text(f"{number}")

    def look() -> None:
        while not done.is_set():
            away.append(not target.is_dir())

    make(0)
    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(1, 300):
        make(number)
        assert [path.name for path in target.iterdir()] == [f"{number}"]
    done.set()
    watcher.join()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert len(away) > 100
    assert not any(away)


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"), atomic_path(tmp_path / "folder", replace_folder=True) as scratch:
        scratch.write_text("a file")
    assert (tmp_path / "folder").is_dir()


def test_the_scratch_name_keeps_the_suffix(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.npz") as scratch:
        assert scratch.suffix == ".npz"
        assert scratch.parent == tmp_path
        scratch.touch()
