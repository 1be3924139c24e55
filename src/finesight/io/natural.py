"""Order names as people do: 14 before 104."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"(\d{1,18})")


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """Return what ``sorted`` needs as ``key``: runs of digits count as numbers, and case does not matter.

    Texts and numbers take turns, so that a text is never compared with a number.
    """
    parts = _DIGITS.split(text.casefold())
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), text
