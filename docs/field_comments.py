"""Let the Python reference show what a comment says of a field: ``mask: Floats  # (N, H, W) in [0, 1]``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Take the comment behind an attribute for its docstring, where it has none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Look at the line on which the attribute ends."""
        if attr.docstring is not None or attr.endlineno is None or not isinstance(attr.filepath, Path):
            return
        _, mark, comment = _lines(attr.filepath)[attr.endlineno - 1].partition("  # ")
        if mark and not comment.startswith(("type:", "noqa", "fmt:")):
            attr.docstring = griffe.Docstring(comment.strip().replace("*", "\\*"), parent=attr)


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()
