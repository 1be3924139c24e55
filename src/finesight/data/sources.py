"""``ImageSource``: which images there are, and whatever is known about them before any is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import IMAGE_SUFFIXES, os_reason
from finesight.data.listing import Listing, classes_of, empty_split, list_folder, list_splits, split_folders
from finesight.data.lists import read_list
from finesight.errors import FineSightError

SUFFIX_TEXT = " ".join(sorted(IMAGE_SUFFIXES))
_PER_IMAGE = ("paths", "labels", "splits", "boxes", "parts", "masks")


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images in a stable order. Labels are for evaluation only: nothing here is read by training."""

    root: Path
    kind: str  # "folder" | "class folders" | "splits" | "list" | "cub" | "cars" | "inat2019" | "lookalikes"
    paths: NDArray[np.str_]  # (N,) relative to root (POSIX) or absolute
    labels: NDArray[np.int64] | None = None  # (N,) index into classes, -1 where an image has none
    classes: tuple[str, ...] = ()
    splits: NDArray[np.str_] | None = None  # (N,) "train" | "test"
    boxes: NDArray[np.float32] | None = None  # (N, 4) x, y, width, height in pixels of the original
    parts: NDArray[np.float32] | None = None  # (N, P, 3) x, y, visible in pixels of the original
    part_names: tuple[str, ...] = ()
    masks: NDArray[np.str_] | None = None  # (N,) mask pictures (non-zero = object), as paths
    skipped: tuple[tuple[str, str], ...] = ()  # path, reason: seen while listing

    def __post_init__(self) -> None:
        for name in _PER_IMAGE:
            values = getattr(self, name)
            if values is not None and len(values) != len(self.paths):
                raise ValueError(f"{len(self.paths)} paths but {len(values)} {name}")

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, indices: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> ImageSource:
        """These images only, in this order (or where a boolean mask is true)."""
        chosen = np.asarray(indices)
        if chosen.dtype != np.bool_:
            chosen = chosen.astype(np.int64)
        known = {name: getattr(self, name) for name in _PER_IMAGE}
        return replace(self, **{name: v[chosen] for name, v in known.items() if v is not None})

    def split(self, name: str) -> ImageSource:
        """The ``train`` or ``test`` images; all of them when the source knows no splits."""
        return self if self.splits is None else self.select(self.splits == name)

    def first_classes(self, count: int) -> ImageSource:
        """The images of the first ``count`` classes."""
        if self.labels is None:
            raise FineSightError(f"{self.root} has no classes, so it cannot be limited to the first {count} of them.")
        if count > len(self.classes):
            raise FineSightError(f"{self.root} has {len(self.classes)} classes: it cannot be limited to {count}.")
        return self.select((self.labels >= 0) & (self.labels < count))

    def file(self, i: int) -> Path:
        return self.root / str(self.paths[i])

    def describe(self) -> str:
        """What was found, for people."""
        facts = [_count(len(self), "image")]
        if self.classes:
            facts.append(_count(len(self.classes), "class", "classes"))
        if self.splits is not None:
            counts = Counter(self.splits.tolist())
            facts.append(" + ".join(f"{counts[name]:,} {name}" for name in ("train", "test")))
        if self.labels is not None and (unlabelled := int((self.labels < 0).sum())):
            facts.append(f"{unlabelled:,} without a label")
        facts += [name for name in ("boxes", "masks") if getattr(self, name) is not None]
        if self.part_names:
            facts.append(_count(len(self.part_names), "part"))
        line = f"{self.kind} {self.root}: {', '.join(facts)}"
        if self.skipped:
            line += f"\n{_count(len(self.skipped), 'other entry', 'other entries')} left out"
        return line


def open_source(path: str | Path) -> ImageSource:
    """Recognise what ``path`` is and list its images; see ``ImageSource.kind`` for what there is."""
    place = Path(path).expanduser().absolute()
    try:
        if place.is_dir():
            return _open_folder(place)
        if place.is_file():
            return _open_file(place)
    except OSError as error:
        raise FineSightError(f"{place} cannot be read: {os_reason(error)}; check its permissions") from error
    raise FineSightError(f"{place} does not exist; give --data a folder of images or a list of image paths")


def _open_folder(root: Path) -> ImageSource:
    if (root / "lookalikes.json").is_file():
        from finesight.data.lookalikes import open_lookalikes

        return open_lookalikes(root)
    from finesight.data.cub import is_cub, open_cub

    if is_cub(root):
        return open_cub(root)
    from finesight.data.cars import is_cars, open_cars

    if is_cars(root):
        return open_cars(root)
    from finesight.data.inat import is_inat, open_inat

    if is_inat(root):
        return open_inat(root)
    if folders := split_folders(root):
        return _open_splits(root, folders)
    listing = list_folder(root)
    _require_images(root, listing)
    paths = np.array(listing.images)
    classes = classes_of(listing.images)
    if len(classes) < 2:
        return ImageSource(root, "folder", paths, skipped=tuple(listing.skipped))
    labels = _labels([path.split("/")[0] for path in listing.images], classes)
    return ImageSource(root, "class folders", paths, labels, classes, skipped=tuple(listing.skipped))


def _open_splits(root: Path, folders: dict[str, str]) -> ImageSource:
    listing = list_splits(root, folders)
    _require_images(root, listing)
    if empty := empty_split(listing, folders):
        raise FineSightError(f"{root / empty} holds no image; fill it or give --data the folder that has them")
    tops, inner = zip(*(path.split("/", 1) for path in listing.images), strict=True)
    found = {top: classes_of(rest for t, rest in zip(tops, inner, strict=True) if t == top) for top in set(tops)}
    classes = tuple(sorted(set().union(*found.values())))
    labels = None
    if len(classes) >= 2:
        names = [rest.split("/")[0] if found[top] else "" for top, rest in zip(tops, inner, strict=True)]
        labels = _labels(names, classes)
    paths = np.array(listing.images)
    splits = np.array(["train" if top == folders["train"] else "test" for top in tops])
    classes = classes if labels is not None else ()
    return ImageSource(root, "splits", paths, labels, classes, splits, skipped=tuple(listing.skipped))


def _open_file(file: Path) -> ImageSource:
    if file.suffix.lower() in IMAGE_SUFFIXES:
        raise FineSightError(f"{file} is a single image; give --data the folder it lies in ({file.parent})")
    rows = read_list(file)
    paths = np.array(rows.paths)
    labels, classes = None, _class_order(rows.labels)
    if classes:
        labels = _labels(rows.labels, classes)
    splits = np.array(rows.splits) if rows.splits else None
    return ImageSource(file.parent, "list", paths, labels, classes, splits, skipped=tuple(rows.skipped))


def _class_order(names: Sequence[str]) -> tuple[str, ...]:
    """Numbers by value, names by alphabet; an empty name is no class."""
    found = set(names) - {""}
    numeric = all(name.isdecimal() for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if numeric else 0, name)))


def _labels(names: Sequence[str], classes: tuple[str, ...]) -> NDArray[np.int64]:
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index.get(name, -1) for name in names], np.int64)


def _require_images(root: Path, listing: Listing) -> None:
    if listing.images:
        return
    if not listing.skipped:
        raise FineSightError(f"{root} is empty; put images into it or give --data another folder")
    reasons = Counter(reason for _, reason in listing.skipped)
    found = ", ".join(f"{n:,} x {reason}" for reason, n in reasons.most_common(5))
    raise FineSightError(
        f"no image in {root}; found {found}. FineSight reads {SUFFIX_TEXT}: "
        "convert the files or give --data another folder"
    )


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
