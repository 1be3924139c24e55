"""Names of files cannot command the terminal that they are printed to."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from finesight.io.console import SafeConsole
from finesight.io.terminal import safe_text

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


def test_logs() -> None:
    from finesight.io import terminal

    before, handlers = sys.stdout, list(logging.getLogger("finesight").handlers)
    try:
        terminal.guard_terminal()
        [added] = [one for one in logging.getLogger("finesight").handlers if one not in handlers]
        assert "\x1b" not in added.format(logging.LogRecord("finesight", 40, "", 1, "%s", (EVIL,), None))
    finally:
        sys.stdout = before
        logging.getLogger("finesight").handlers = handlers
