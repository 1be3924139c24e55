"""List the files of an index's folder; files outside of it are refused, also behind links."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from finesight.data.decode import UnreachableFile, os_reason
from finesight.data.places import is_address, is_place, split_member, stamp
from finesight.data.sources import ImageSource

ID_BITS = 52  # exact in JavaScript's numbers too
OUTSIDE = "it lies outside the folder (a link or a path that leaves it)"
UNREADABLE_FOLDER = "folder cannot be read"  # how ``list_folder`` begins what it says of one


@dataclass(frozen=True)
class ImageFile:
    """A file of the folder: its path (relative, POSIX) and what tells whether it changed."""

    path: str
    bytes: int
    mtime_ns: int


def item_file(root: str | Path, path: str) -> Path | None:
    """Return the real file of an item, or None if it lies outside the root by now or is no plain file.

    Of an item that is no file of its own (data/places.py) it is the path that stands for it.
    """
    real_root = os.path.realpath(root)
    if is_place(place := os.path.join(real_root, path)):
        inside = not path.startswith("/") and os.pardir not in path.split("/")
        member = split_member(path)
        if inside and member is not None and not is_address(real_root):
            inside = _below(os.path.realpath(os.path.join(real_root, member[0])), real_root)
        return Path(place) if inside else None
    real = os.path.realpath(os.path.join(real_root, path))
    if not _below(real, real_root) or not os.path.isfile(real):
        return None
    return Path(real)


def list_files(source: ImageSource) -> tuple[list[ImageFile], list[tuple[str, str]]]:
    """Return the images of a source that lie in its folder, and path and reason of every other entry."""
    root = os.path.realpath(source.root)
    found: dict[str, ImageFile] = {}
    skipped = list(source.skipped)
    folders: dict[str, str] = {}  # real path of each folder, looked up once
    for given in source.paths.tolist():
        absolute = os.path.isabs(given)  # in a list; otherwise it is relative to the root
        path = os.path.relpath(given, source.root).replace(os.sep, "/") if absolute else os.path.normpath(given)
        file = os.path.join(root, path)
        if is_place(file) and not path.startswith(("/", "../")):
            try:
                found[path] = ImageFile(path, *stamp(file))
            except UnreachableFile as error:
                skipped.append((given, str(error)))
            continue
        try:
            real = _real(file, folders)
            status = os.stat(real)
        except OSError as error:
            skipped.append((given, os_reason(error)))
            continue
        if not _below(real, root) or path.startswith(("/", "../")):
            skipped.append((given, OUTSIDE))
        elif not stat.S_ISREG(status.st_mode):
            skipped.append((given, "not a regular file"))
        else:
            found[path] = ImageFile(path, status.st_size, status.st_mtime_ns)
    return list(found.values()), skipped


def assign_ids(paths: Iterable[str], taken: Mapping[str, int]) -> dict[str, int]:
    """Return an id for each path: the one it has, else ``path_id``, or the next free one if another path has that."""
    owners = {item: path for path, item in taken.items()}
    ids = {}
    for path in paths:
        item = taken[path] if path in taken else path_id(path)
        while owners.get(item, path) != path:
            item = (item + 1) % (1 << ID_BITS)
        owners[item] = path
        ids[path] = item
    return ids


def path_id(path: str) -> int:
    """Return the same number for the same relative path, below 2**52."""
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - ID_BITS)


def _real(file: str, folders: dict[str, str]) -> str:
    """Return the real path as ``os.path.realpath`` does, but follow the links of each folder only once."""
    if os.path.islink(file):
        return os.path.realpath(file, strict=True)
    folder, name = os.path.split(file)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder, strict=True)
    return os.path.join(folders[folder], name)


def _below(real: str, root: str) -> bool:
    return real.startswith(root.rstrip(os.sep) + os.sep)
