"""What reaches a terminal: file names may hold characters that move the cursor, set its title or reverse text."""

from __future__ import annotations

import logging
import re
import sys
from typing import IO, Any

# Control characters but for line breaks and tabs, halves of surrogate pairs (bytes that are no text), separators of
# lines, and marks that reverse the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Return the text with control characters written out, such as \\x1b."""
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


class SafeOutput:
    """A text stream that is written safely. Rich, whose control characters are meant, writes to what is behind it."""

    def __init__(self, stream: IO[str]) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text; return its length."""
        self.rich_proxied_file.write(safe_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record))


def guard_terminal() -> None:
    """Let all that this process prints or logs be safe. What the console prints is so already."""
    sys.stdout = SafeOutput(sys.stdout)
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_SafeFormatter())
    logging.getLogger("finesight").addHandler(handler)
