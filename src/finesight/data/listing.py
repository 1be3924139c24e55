"""List folders: which files are images, and which splits and classes the names of folders give."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.decode import IMAGE_SUFFIXES, os_reason

_IGNORED = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
TEST_FOLDERS = ("test", "val", "validation")  # the first one there is the test split
_SUFFIXES = tuple(IMAGE_SUFFIXES)


@dataclass
class Listing:
    """The images of a folder. Paths are POSIX, relative to it and sorted.

    ``counts`` says how many images lie directly in each folder, so that classes are found without a pass over a
    million paths.
    """

    images: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def list_folder(root: Path, below: Iterable[str] = ("",)) -> Listing:
    """List all images in ``root`` (or in these of its folders), at any depth.

    Every real folder is entered once, whatever links point at it: a link to a parent would never end. Linked folders
    come after all others, so an image that is reached both ways keeps its true path.
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
    """List one folder. Its images are sorted here already, which makes the sort of all images cheap."""
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
                    elif not name.startswith("._"):  # what macOS keeps beside a file on other systems' disks
                        listing.skipped.append((prefix + name, "hidden: its name begins with a dot"))
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
    """Return whether a file is one that file managers or version control leave behind."""
    return name.startswith(".") or name.lower() in _IGNORED


def not_an_image_suffix(name: str) -> str:
    """Return why a file of this name is not an image; an empty text if it may be one."""
    if name.lower().endswith(_SUFFIXES) and name.rpartition(".")[0][-1:] not in ("", "/", "."):
        return ""  # nearly always: what follows takes many times as long
    suffix = os.path.splitext(name)[1].lower()
    if suffix in IMAGE_SUFFIXES:
        return ""
    return f"not an image file ({suffix or 'no suffix'})"


def _not_an_image(entry: os.DirEntry[str]) -> str:
    """Return why an entry is not an image; it is not a folder."""
    return not_an_image_suffix(entry.name) or ("broken link" if entry.is_symlink() else "not a regular file")


def _is(entry: os.DirEntry[str], what: str) -> bool:
    """Return whether an entry is a file (or folder). A link that points at itself is neither."""
    try:
        return entry.is_dir() if what == "dir" else entry.is_file()
    except OSError:
        return False


def split_folders(root: Path) -> dict[str, str]:
    """Return {"train": folder, "test": folder} if ``root`` has both, else an empty dict."""
    wanted = {"train", *TEST_FOLDERS}
    with os.scandir(root) as entries:
        names = {e.name.lower(): e.name for e in entries if e.name.lower() in wanted and _is(e, "dir")}
    test = next((names[name] for name in TEST_FOLDERS if name in names), None)
    return {"train": names["train"], "test": test} if test and "train" in names else {}


def entries_beside(root: Path, folders: dict[str, str]) -> list[tuple[str, str]]:
    """Return what lies beside the split folders, with the reason why it is not used."""
    where = " or ".join(f"{folder}/" for folder in folders.values())
    found = []
    for name in sorted(os.listdir(root)):
        if not is_hidden(name) and name not in folders.values():
            reason = "" if (root / name).is_dir() else not_an_image_suffix(name)
            found.append((name, reason or f"not in {where}"))
    return found


def class_counts(listing: Listing, depth: int = 0) -> dict[str, int]:
    """Count the images of each folder of this depth, in order; an empty dict if any image lies in no such folder."""
    counts: Counter[str] = Counter()
    for folder, n in listing.counts.items():
        counts["".join(folder.split("/")[depth : depth + 1])] += n
    return {} if "" in counts else {name: counts[name] for name in sorted(counts, key=lambda name: f"{name}/")}
