"""Walking folders: which files are images, which splits and classes the folder names spell."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.decode import IMAGE_SUFFIXES, os_reason

_IGNORED = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
_TEST_FOLDERS = ("test", "val", "validation")  # the first one there is the test split
_SUFFIXES = tuple(IMAGE_SUFFIXES)


@dataclass
class Listing:
    """Paths are POSIX and relative to the folder that was listed; sorted, so the order is always the same.

    ``counts`` says how many images lie directly in each folder: of a million images, a thousand folders tell the
    classes without a look at the paths again.
    """

    images: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


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
        place = os.path.join(root, folder)
        try:
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            _scan(place, folder, listing, folders, linked)
        except OSError as error:
            if folder == "":
                raise
            listing.skipped.append((folder, f"folder cannot be read: {os_reason(error)}"))
    listing.images.sort()
    listing.skipped.sort()
    return listing


def _scan(place: str, folder: str, listing: Listing, folders: deque[str], linked: deque[str]) -> None:
    """One folder. What it holds is sorted here already: to sort all in the end is then a merge of few runs."""
    prefix = f"{folder}/" if folder else ""
    images: list[str] = []
    others: list[os.DirEntry[str]] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:  # a million times: the usual entry, an image, must be quick
                name = entry.name
                if name.lower().endswith(_SUFFIXES) and _is(entry, "file"):
                    if not name.startswith("."):
                        images.append(prefix + name)
                elif not is_hidden(name):
                    others.append(entry)
    finally:  # if it cannot be read to its end, what was seen counts
        images.sort()
        listing.images += images
        if images:
            listing.counts[folder] = len(images)
        for entry in sorted(others, key=lambda other: other.name):
            if _is(entry, "dir"):
                (linked if entry.is_symlink() else folders).append(prefix + entry.name)
            else:
                listing.skipped.append((prefix + entry.name, _not_an_image(entry)))


def is_hidden(name: str) -> bool:
    """Files that file managers and version control leave behind: nobody means them."""
    return name.startswith(".") or name.lower() in _IGNORED


def not_an_image_suffix(name: str) -> str:
    """Why a file of this name is not an image; empty when it may be one."""
    if name.lower().endswith(_SUFFIXES) and name.rpartition(".")[0][-1:] not in ("", "/", "."):
        return ""  # nearly always: what follows takes many times as long
    suffix = os.path.splitext(name)[1].lower()
    if suffix in IMAGE_SUFFIXES:
        return ""
    return f"not an image file ({suffix or 'no suffix'})"


def _not_an_image(entry: os.DirEntry[str]) -> str:
    """Why not, of an entry that is no folder and no image file."""
    return not_an_image_suffix(entry.name) or ("broken link" if entry.is_symlink() else "not a regular file")


def _is(entry: os.DirEntry[str], what: str) -> bool:
    """Without a stat for ordinary entries; a link that points at itself is neither file nor folder."""
    try:
        return entry.is_dir() if what == "dir" else entry.is_file()
    except OSError:
        return False


def split_folders(root: Path) -> dict[str, str]:
    """{"train": folder, "test": folder} when ``root`` has both, else nothing."""
    wanted = {"train", *_TEST_FOLDERS}
    with os.scandir(root) as entries:
        names = {e.name.lower(): e.name for e in entries if e.name.lower() in wanted and _is(e, "dir")}
    test = next((names[name] for name in _TEST_FOLDERS if name in names), None)
    return {"train": names["train"], "test": test} if test and "train" in names else {}


def list_splits(root: Path, folders: dict[str, str]) -> dict[str, Listing]:
    """The images of both split folders, by the split's name, with their paths as seen from ``root``."""
    return {split: list_folder(root, [folder]) for split, folder in folders.items()}  # apart: one may be linked in both


def beside(root: Path, folders: dict[str, str]) -> list[tuple[str, str]]:
    """What lies beside the split folders is reported, not used."""
    where = " or ".join(f"{folder}/" for folder in folders.values())
    found = []
    for name in sorted(os.listdir(root)):
        if not is_hidden(name) and name not in folders.values():
            reason = "" if (root / name).is_dir() else not_an_image_suffix(name)
            found.append((name, reason or f"not in {where}"))
    return found


def class_counts(listing: Listing, depth: int = 0) -> dict[str, int]:
    """How many images each folder of this depth holds, in the order of ``listing.images``, in which the images of a
    folder stand together; nothing as soon as one image lies in no such folder."""
    counts: Counter[str] = Counter()
    for folder, n in listing.counts.items():
        counts["".join(folder.split("/")[depth : depth + 1])] += n
    return {} if "" in counts else {name: counts[name] for name in sorted(counts, key=lambda name: f"{name}/")}
