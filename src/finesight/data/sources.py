"""``ImageSource``: the images of a dataset with what is known about them before any is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import IMAGE_SUFFIXES, os_reason
from finesight.data.layouts.layout import LAYOUTS, open_dataset, recognize_layout
from finesight.data.listing import (
    TEST_FOLDERS,
    Listing,
    class_counts,
    entries_beside,
    list_folder,
    split_folders,
)
from finesight.data.lists import (
    ListedImages,
    is_list_table,
    known_split,
    read_list,
    read_list_table,
    test_or_validation,
)
from finesight.data.named_path import split_named_path
from finesight.data.places import address, is_address
from finesight.data.shards import Found, find_containers, find_remote, list_containers
from finesight.errors import FineSightError
from finesight.io.console import format_count

SUFFIX_TEXT = " ".join(sorted(IMAGE_SUFFIXES))
_PER_IMAGE = ("paths", "labels", "splits", "boxes", "parts", "masks")


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images in a stable order. Self-supervised training does not read the labels; evaluation does."""

    root: Path
    kind: str  # "folder" | "class folders" | "splits" | "list" | "shards" or the name of a dataset layout
    paths: NDArray[np.str_]  # (N,) relative to root (POSIX) or absolute
    labels: NDArray[np.int64] | None = None  # (N,) index into classes, -1 where an image has none
    classes: tuple[str, ...] = ()
    splits: NDArray[np.str_] | None = None  # (N,) "train" | "test"
    boxes: NDArray[np.float32] | None = None  # (N, 4) x, y, width, height in pixels of the original
    parts: NDArray[np.float32] | None = None  # (N, P, 3) x, y, visible in pixels of the original
    part_names: tuple[str, ...] = ()
    masks: NDArray[np.str_] | None = None  # (N,) mask pictures (non-zero = object), as paths
    skipped: tuple[tuple[str, str], ...] = ()  # path, reason: seen while listing
    trim: int = 0  # pixel rows cut off the bottom of every image before anything else

    def __post_init__(self) -> None:
        for name in _PER_IMAGE:
            values = getattr(self, name)
            if values is not None and len(values) != len(self.paths):
                raise ValueError(f"{len(self.paths)} paths but {len(values)} {name}")

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, indices: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> ImageSource:
        """Return these images only, in this order (or those where a boolean mask is true)."""
        chosen = np.asarray(indices)
        if chosen.dtype != np.bool_:
            chosen = chosen.astype(np.int64)
        known = {name: getattr(self, name) for name in _PER_IMAGE}
        return replace(self, **{name: v[chosen] for name, v in known.items() if v is not None})

    def split(self, name: str) -> ImageSource:
        """Return the ``train`` or ``test`` images; all of them if the source has no splits."""
        return self if self.splits is None else self.select(self.splits == name)

    def first_classes(self, count: int) -> ImageSource:
        """Return the images of the first ``count`` classes, or raise an error if there are fewer."""
        if self.labels is None:
            raise FineSightError(f"{self.root} has no classes, so it cannot be limited to the first {count} of them.")
        if count > len(self.classes):
            raise FineSightError(f"{self.root} has {len(self.classes)} classes: it cannot be limited to {count}.")
        return self.select((self.labels >= 0) & (self.labels < count))

    def file(self, i: int) -> Path:
        """Return the path of an image."""
        return self.root / str(self.paths[i])

    def describe(self) -> str:
        """Return kind, folder and counts in one line for people."""
        facts = [format_count(len(self), "image")]
        if self.classes:
            facts.append(format_count(len(self.classes), "class", "classes"))
        if self.splits is not None:
            facts.append(" + ".join(f"{int((self.splits == name).sum()):,} {name}" for name in ("train", "test")))
        if self.labels is not None and (unlabeled := int((self.labels < 0).sum())):
            facts.append(f"{unlabeled:,} without a label")
        facts += [name for name in ("boxes", "masks") if getattr(self, name) is not None]
        if self.part_names:
            facts.append(format_count(len(self.part_names), "part"))
        line = f"{self.kind} {address(self.root)}: {', '.join(facts)}"
        if self.skipped:
            line += f"\n{format_count(len(self.skipped), 'other entry', 'other entries')} left out"
        return line


def open_source(data: str | Path) -> ImageSource:
    """Recognize what a folder or file holds and list its images, or raise a ``FineSightError`` that says what is wrong.

    ``data`` is a folder of images (in class folders or not, split into train and test or not), a list of image paths,
    or the folder of a named dataset. ``cub:PATH`` and the like demand that the whole dataset is there.
    """
    name, text = split_named_path(data)
    if name is None and is_address(text):
        return _open_found(find_remote(text))
    path = Path(text).expanduser().absolute()
    try:
        if name is not None:
            from finesight.data.verification import open_complete

            return open_complete(LAYOUTS[name], path)
        if path.is_dir():
            return _open_folder(path)
        if path.is_file():
            return _open_file(path)
    except OSError as error:
        raise FineSightError(f"{path} cannot be read: {os_reason(error)}; check its permissions") from error
    raise FineSightError(f"{path} does not exist; give --data a folder of images or a list of image paths")


def _open_folder(root: Path) -> ImageSource:
    if layout := recognize_layout(root):
        return open_dataset(layout, root)
    if folders := split_folders(root):
        if not (found := find_containers(root)):
            return open_splits(root, folders)
        return _open_found(found)
    listing = list_folder(root)
    if not listing.images and (found := find_containers(root)):
        return _open_found(found)
    return _open_listing(root, listing)


def _open_found(found: Found) -> ImageSource:
    """Return the images of an address or of containers."""
    if found.list_file is not None:
        return _of_rows(found.root, "list", found.list_file)
    if found.files is None:
        return _of_rows(found.root, "shards", list_containers(found.root, found.containers))
    listing = found.files
    _require_images(found.root, listing)
    tops = {folder.partition("/")[0] for folder in listing.counts}
    test = next((name for name in TEST_FOLDERS if name in tops), None)
    if test is None or "train" not in tops:
        return _open_listing(found.root, listing)
    parts = {split: _below(listing, folder) for split, folder in (("train", "train"), ("test", test))}
    beside = [
        (path, f"not in train/ or {test}/") for path in listing.images if not path.startswith(("train/", f"{test}/"))
    ]
    return _join_splits(found.root, parts, [*listing.skipped, *beside])


def _below(listing: Listing, folder: str) -> Listing:
    counts = {name: n for name, n in listing.counts.items() if f"{name}/".startswith(f"{folder}/")}
    return Listing([path for path in listing.images if path.startswith(f"{folder}/")], counts=counts)


def _open_listing(root: Path, listing: Listing) -> ImageSource:
    _require_images(root, listing)
    paths, skipped = np.array(listing.images), tuple(listing.skipped)
    counts = class_counts(listing)
    if len(counts) < 2:
        return ImageSource(root, "folder", paths, skipped=skipped)
    classes = tuple(sorted(counts))
    return ImageSource(root, "class folders", paths, _repeat_labels(counts, classes), classes, skipped=skipped)


def open_splits(root: Path, folders: dict[str, str]) -> ImageSource:
    """Return the images of a train and a test folder (``split_folders``); class folders in them are the labels."""
    parts = {split: list_folder(root, [folder]) for split, folder in folders.items()}  # one may be linked in both
    skipped = [entry for part in parts.values() for entry in part.skipped] + entries_beside(root, folders)
    _require_images(root, Listing([path for part in parts.values() for path in part.images], skipped))
    if empty := next((folders[split] for split, part in parts.items() if not part.images), None):
        raise FineSightError(f"{root / empty} holds no image; fill it or give --data the folder that has them")
    return _join_splits(root, parts, skipped)


def _join_splits(root: Path, parts: dict[str, Listing], skipped: list[tuple[str, str]]) -> ImageSource:
    whole = Listing([path for part in parts.values() for path in part.images], skipped)
    counts = [class_counts(part, depth=1) or {"": len(part.images)} for part in parts.values()]
    classes, labels = tuple(sorted(set().union(*counts) - {""})), None
    if len(classes) >= 2:
        labels = np.concatenate([_repeat_labels(part, classes) for part in counts])
    else:
        classes = ()
    splits = np.repeat(list(parts), [len(part.images) for part in parts.values()])
    return ImageSource(root, "splits", np.array(whole.images), labels, classes, splits, skipped=tuple(whole.skipped))


def _open_file(file: Path) -> ImageSource:
    if file.suffix.lower() in IMAGE_SUFFIXES:
        raise FineSightError(f"{file} is a single image; give --data the folder it lies in ({file.parent})")
    if is_list_table(file):
        return _of_rows(file.parent, "list", read_list_table(file))
    if found := find_containers(file):
        return _open_found(found)
    return _of_rows(file.parent, "list", read_list(file))


def source_of_rows(file: Path, kind: str, paths: list[str], labels: list[str], splits: list[str]) -> ImageSource:
    """Return the images that a table lists beside ``file``; without labels or splits these lists are empty.

    Splits mean what they mean in a list: without test images, those of validation are. Others raise ``FineSightError``.
    """
    rows = ListedImages(paths, labels or [""] * len(paths), [known_split(split, file) for split in splits])
    return _of_rows(file.parent, kind, test_or_validation(rows))


def _of_rows(root: Path, kind: str, rows: ListedImages) -> ImageSource:
    classes = _class_order(rows.labels)
    labels = _labels(rows.labels, classes) if classes else None
    splits = np.array(rows.splits) if rows.splits else None
    return ImageSource(root, kind, np.array(rows.paths), labels, classes, splits, skipped=tuple(rows.skipped))


def _class_order(names: Sequence[str]) -> tuple[str, ...]:
    """Sort class names: numbers by value, others by alphabet. An empty name is no class."""
    found = set(names) - {""}
    numeric = all(name.isdecimal() for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if numeric else 0, name)))


def _labels(names: Sequence[str], classes: tuple[str, ...]) -> NDArray[np.int64]:
    index = {name: i for i, name in enumerate(classes)}
    return np.fromiter((index.get(name, -1) for name in names), np.int64, len(names))


def _repeat_labels(counts: dict[str, int], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the labels of images that are sorted by class."""
    return np.repeat(_labels(list(counts), classes), list(counts.values()))


def _require_images(root: Path, listing: Listing) -> None:
    if listing.images:
        return
    where = address(root)
    if not listing.skipped:
        raise FineSightError(f"{where} is empty; put images into it or give --data another folder")
    reasons = Counter(reason for _, reason in listing.skipped)
    found = ", ".join(f"{n:,} x {reason}" for reason, n in reasons.most_common(5))
    raise FineSightError(
        f"no image in {where}; found {found}. FineSight reads {SUFFIX_TEXT}: "
        "convert the files or give --data another folder"
    )
