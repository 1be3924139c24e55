"""``NAME:PATH``: a path with the name of the dataset that must be there, as ``--data`` takes it."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from finesight.data.layouts.layout import LAYOUTS
from finesight.data.places import is_address
from finesight.errors import FineSightError, unknown


def split_named_path(data: str | Path) -> tuple[str | None, str]:
    """Split ``cub:PATH`` into "cub" and PATH; return ``None`` and the whole for a path without a name.

    A file or folder that exists under the whole text is a path. A mistyped name raises a ``FineSightError``.
    """
    text = str(data)
    name, colon, path = text.partition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):
        return None, text
    if name.lower() in LAYOUTS:
        if not path:
            raise FineSightError(f"{text} names no folder; write {name.lower()}:PATH")
        return name.lower(), path
    if _looks_like_a_name(name, path):
        raise unknown("dataset", name, LAYOUTS)
    return None, text


def _looks_like_a_name(name: str, path: str) -> bool:
    """Return False for a drive (C:) and an address (https://...)."""
    if not re.fullmatch(r"[A-Za-z][\w-]+", name) or path.startswith("//"):
        return False
    near = difflib.get_close_matches(name.lower(), list(LAYOUTS), n=1)
    return bool(near) or (bool(path) and os.path.exists(os.path.expanduser(path)))


def absolute_named_path(data: str) -> str:
    """Return ``data`` with an absolute path; a name before it is kept."""
    name, path = split_named_path(data)
    return data if is_address(path) else _join(name, str(Path(path).expanduser().absolute()))


def short_named_path(data: str) -> str:
    """Return ``data`` with only the last part of its path, for commands that are run on another machine."""
    name, path = split_named_path(data)
    return _join(name, Path(path).absolute().name)


def _join(name: str | None, path: str) -> str:
    return path if name is None else f"{name}:{path}"
