"""Files are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from finesight.io.atomic import atomic_path, write_atomic


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


def test_folders_appear_whole(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "folder") as scratch:
        scratch.mkdir()
        (scratch / "one").write_text("1")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "one").read_text() == "1"
    with pytest.raises(RuntimeError):
        fail_half_way(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_scratch_name_keeps_the_suffix(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.npz") as scratch:
        assert scratch.suffix == ".npz"
        assert scratch.parent == tmp_path
        scratch.touch()
