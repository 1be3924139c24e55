"""What commands print of files whose names could command a terminal. Only what a process prints is looked at."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

from indexes import small_encoder
from processes import Finished, command

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj"
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode's kinds: control, format, half of a pair, line, paragraph


def unsafe(done: Finished) -> set[str]:
    """Return what a terminal could take for a command, but for line breaks and tabs."""
    return {one for one in done.out + done.err if unicodedata.category(one) in UNSAFE and one not in "\n\t"}


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
