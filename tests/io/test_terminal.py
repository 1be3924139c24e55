"""Names of files cannot command the terminal that they are printed to."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finesight.io.console import SafeConsole
from finesight.io.terminal import safe_text
from indexes import small_encoder
from processes import Finished, command

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ptáček 鳥 🐦\u00a0é\n\tmore", "plain ptáček 鳥 🐦\u00a0é\n\tmore"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb\x07\x7f\x9b", "a\\rb\\x07\\x7f\\x9b"),
        ("\u202egnp", "\\u202egnp"),
        (os.fsdecode(b"\xe9"), "\\udce9"),
    ],
)
def test_text(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    SafeConsole(file=sys.stdout, force_terminal=True, color_system=None).print(f"[b]{EVIL}", markup=False)
    assert "\x1b" not in capsys.readouterr().out


def unsafe(done: Finished) -> set[str]:
    return {character for character in done.out + done.err if safe_text(character) != character}


def test_commands(picture: Callable[..., Path], tmp_path: Path) -> None:
    """A folder, an image and an unreadable file with such names; an error, a table, hits and groups."""
    folder = tmp_path / f"images{EVIL}"
    folder.mkdir()
    for seed in range(4):
        shutil.move(picture("x.png", seed=seed // 2), folder / f"{seed}{EVIL}.png")
    (folder / f"broken{EVIL}.png").write_bytes(b"nothing")
    run = small_encoder(tmp_path / "run")
    said = ""
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
        assert not unsafe(done), (words, done)
        assert "Traceback" not in done.err, (words, done)
        said += done.out + done.err
    assert "\\x1b]0;owned" in said


def test_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from finesight.io import terminal

    before, handlers = sys.stdout, list(logging.getLogger("finesight").handlers)
    try:
        terminal.guard_terminal()
        [added] = [one for one in logging.getLogger("finesight").handlers if one not in handlers]
        assert "\x1b" not in added.format(logging.LogRecord("finesight", 40, "", 1, "%s", (EVIL,), None))
    finally:
        sys.stdout = before
        logging.getLogger("finesight").handlers = handlers
