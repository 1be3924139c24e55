"""What commands print of files whose names could command a terminal. Only what a process prints is looked at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from indexes import small_encoder
from processes import Finished, command

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj"
UNSAFE = frozenset("\x1b\x07\x9b\u202e")


def unsafe(done: Finished) -> frozenset[str]:
    return UNSAFE & frozenset(done.out + done.err)


def test_commands(picture: Callable[..., Path], tmp_path: Path) -> None:
    """A folder, an image and an unreadable file with such names; an error, a table, hits and groups."""
    folder = tmp_path / f"images{EVIL}"
    folder.mkdir()
    for seed in range(4):
        shutil.move(picture("x.png", seed=seed // 2), folder / f"{seed}{EVIL}.png")
    (folder / f"broken{EVIL}.png").write_bytes(b"nothing")
    run = small_encoder(tmp_path / "run")
    said, found = "", {}
    for words in (
        ("index", run, folder),
        ("search", run, folder / f"0{EVIL}.png"),
        ("duplicates", run),
        ("clusters", run, "--method", "kmeans", "--count", "2"),
        ("inspect", folder),
        ("datasets", "check", folder),
        ("embed", run, folder, "-o", tmp_path / f"features{EVIL}.npz"),
        ("embed", run, folder / "nothing", "-o", tmp_path / "features.npz"),
        ("search", run, folder / f"broken{EVIL}.png"),
    ):
        done = command(*words)
        assert "Traceback" not in done.err, (words, done)
        if unsafe(done):
            found[words[0]] = ascii(sorted(unsafe(done)))
        said += done.out + done.err
    assert not found, f"control characters reach the terminal: {found}"
    assert "\\x1b]0;owned" in said
