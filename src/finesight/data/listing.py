"""Walking folders: which files are images, which splits and classes the folder names spell."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.decode import IMAGE_SUFFIXES, os_reason

_IGNORED = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
_TEST_FOLDERS = ("test", "val", "validation")  # the first one there is the test split


@dataclass
class Listing:
    """Paths are POSIX and relative to the folder that was listed; sorted, so the order is always the same."""

    images: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def list_folder(root: Path, below: Iterable[str] = ("",)) -> Listing:
    """All images in ``root`` (or in these of its folders), at any depth.

    Every real folder is entered once, whatever links point at it: a link back up would otherwise never end.
    Linked folders come after all others, so an image reachable both ways keeps its true path.
    """
    listing = Listing()
    entered: set[tuple[int, int]] = set()
    folders = deque(below)
    linked: deque[str] = deque()
    while folders or linked:
        folder = folders.popleft() if folders else linked.popleft()
        try:
            status = os.stat(root / folder)
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            _scan(root, folder, listing, folders, linked)
        except OSError as error:
            if folder == "":
                raise
            listing.skipped.append((folder, f"folder cannot be read: {os_reason(error)}"))
    listing.images.sort()
    listing.skipped.sort()
    return listing


def _scan(root: Path, folder: str, listing: Listing, folders: deque[str], linked: deque[str]) -> None:
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _is(entry, "dir"):
                (linked if entry.is_symlink() else folders).append(path)
            elif reason := _not_an_image(entry):
                listing.skipped.append((path, reason))
            else:
                listing.images.append(path)


def is_hidden(name: str) -> bool:
    """Files that file managers and version control leave behind: nobody means them."""
    return name.startswith(".") or name.lower() in _IGNORED


def not_an_image_suffix(name: str) -> str:
    """Why a file of this name is not an image; empty when it may be one."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix in IMAGE_SUFFIXES:
        return ""
    return f"not an image file ({suffix or 'no suffix'})"


def _not_an_image(entry: os.DirEntry[str]) -> str:
    if reason := not_an_image_suffix(entry.name):
        return reason
    if _is(entry, "file"):
        return ""
    return "broken link" if entry.is_symlink() else "not a regular file"


def _is(entry: os.DirEntry[str], what: str) -> bool:
    """Without a stat for ordinary entries; a link that points at itself is neither file nor folder."""
    try:
        return entry.is_dir() if what == "dir" else entry.is_file()
    except OSError:
        return False


def split_folders(root: Path) -> dict[str, str]:
    """{"train": folder, "test": folder} when ``root`` has both, else nothing."""
    with os.scandir(root) as entries:
        names = {entry.name.lower(): entry.name for entry in entries if _is(entry, "dir")}
    test = next((names[name] for name in _TEST_FOLDERS if name in names), None)
    return {"train": names["train"], "test": test} if test and "train" in names else {}


def list_splits(root: Path, folders: dict[str, str]) -> Listing:
    """The images of both split folders; what lies beside them is reported, not used."""
    whole = Listing()
    for folder in folders.values():  # apart: a folder may be linked into both
        listing = list_folder(root, [folder])
        whole.images += listing.images
        whole.skipped += listing.skipped
    where = " or ".join(f"{folder}/" for folder in folders.values())
    for name in sorted(os.listdir(root)):
        if not is_hidden(name) and name not in folders.values():
            reason = "" if (root / name).is_dir() else not_an_image_suffix(name)
            whole.skipped.append((name, reason or f"not in {where}"))
    return whole


def empty_split(listing: Listing, folders: dict[str, str]) -> str:
    """The first split folder without an image, or nothing."""
    return next((f for f in folders.values() if not any(p.startswith(f + "/") for p in listing.images)), "")


def classes_of(images: Iterable[str]) -> tuple[str, ...]:
    """The names of the top folders when every image lies in one; nothing as soon as one image does not."""
    tops = {path.split("/", 1)[0] if "/" in path else "" for path in images}
    return () if "" in tops else tuple(sorted(tops))
