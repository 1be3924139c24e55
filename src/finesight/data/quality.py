"""Find what is wrong with a folder of images: unreadable and tiny ones, duplicates, images in both splits."""

from __future__ import annotations

import json
import stat
import warnings
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.decode import UnreachableFile, explain_os_errors, os_reason, read_image_and_size
from finesight.data.geometry import cache_side
from finesight.data.image_hash import content_hash, group_duplicates, perceptual_hashes
from finesight.data.looks import SIDE, Looks, measure_looks
from finesight.data.places import is_place
from finesight.data.sources import ImageSource
from finesight.data.store import write_skipped
from finesight.errors import SkipImage
from finesight.io.atomic import write_atomic
from finesight.io.parallel import bounded_map
from finesight.io.progress import track
from finesight.io.table import write_table

TINY = 64  # pixels of the short side
DECODED = 64  # enough for a 32 px hash: a JPEG is decoded at up to 1/8


@dataclass(frozen=True)
class SkippedFile:
    """A file that is not used, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ImageSize:
    """An image with its size in pixels."""

    path: str
    width: int
    height: int


@dataclass(frozen=True)
class DuplicateImage:
    """One image of a group of duplicates; ``exact`` when another of the group has the same bytes."""

    path: str
    kind: str  # "exact" | "near"
    split: str | None
    label: str | None


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that show the same picture. A chain counts: the first and the last may differ more than neighbors do."""

    kind: str  # "exact" when all have the same bytes, else "near"
    images: tuple[DuplicateImage, ...]

    @property
    def leaks(self) -> bool:
        """Whether its images are in both splits."""
        return len({image.split for image in self.images}) > 1

    @property
    def conflicts(self) -> bool:
        """Whether its images have different labels."""
        return len({image.label for image in self.images} - {None}) > 1


@dataclass(frozen=True)
class ClassSizes:
    """How many readable images the classes have."""

    count: int
    smallest: tuple[str, int]
    median: float
    largest: tuple[str, int]
    lonely: tuple[str, ...]  # fewer than 2 images: no other image of the class can be found


@dataclass(frozen=True)
class ShortSide:
    """Pixels of the short sides of images."""

    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class CheckReport:
    """What ``check_source`` found."""

    root: str
    kind: str
    images: int
    readable: int
    splits: dict[str, int] | None  # as listed
    unlabeled: int | None  # as listed; None for a source without classes
    classes: ClassSizes | None
    unreadable: tuple[SkippedFile, ...]
    left_out: tuple[SkippedFile, ...]  # seen while listing: not images, broken links
    short_side: ShortSide | None  # of the readable images; None without any
    tiny: tuple[ImageSize, ...]  # short side below TINY
    small_side: int  # the short side that training at the wanted resolution keeps
    small: int  # images below it, the tiny ones included
    blank: tuple[str, ...] | None  # of one color; None when near duplicates were not looked for
    near: bool  # whether near duplicates were looked for
    duplicates: tuple[DuplicateGroup, ...]

    @property
    def leaks(self) -> tuple[DuplicateGroup, ...]:
        return tuple(group for group in self.duplicates if group.leaks)

    @property
    def leaked(self) -> int:
        """The number of test images that are in the train split too."""
        return sum(image.split == "test" for group in self.leaks for image in group.images)

    @property
    def conflicts(self) -> tuple[DuplicateGroup, ...]:
        return tuple(group for group in self.duplicates if group.conflicts)

    @property
    def clean(self) -> bool:
        """Whether every file is readable and no test image is in train, as ``--strict`` demands."""
        return not self.unreadable and not self.leaks

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        facts = {"unlabelled" if key == "unlabeled" else key: value for key, value in asdict(self).items()}
        for shown, group in zip(facts["duplicates"], self.duplicates, strict=True):
            shown |= {"leaks": group.leaks, "conflicts": group.conflicts}
        return facts | {"leaked": self.leaked, "clean": self.clean}


@dataclass(frozen=True)
class ImageFacts:
    """What is remembered of one image."""

    size: tuple[int, int] = (0, 0)
    content: bytes | None = None  # only where another file is as long
    hash: int | None = None
    reason: str = ""  # why it cannot be read
    mirrored: int | None = None  # the hash of its mirror image
    looks: Looks | None = None  # only where they were asked for


def check_source(
    source: ImageSource,
    *,
    resolution: int = 224,
    near: bool = True,
    workers: int | None = None,
    progress: bool = True,
) -> CheckReport:
    """Read every image once, with the decoder that training uses, and return what is wrong."""
    facts = read_facts(source, near=near, workers=workers, progress=progress)
    readable = [i for i, image in enumerate(facts) if not image.reason]
    paths = source.paths.tolist()
    short = {i: min(facts[i].size) for i in readable}
    pixels, side = list(short.values()), cache_side(resolution)
    labels = source.labels
    return CheckReport(
        root=str(source.root),
        kind=source.kind,
        images=len(source),
        readable=len(readable),
        splits=None if source.splits is None else dict(sorted(Counter(source.splits.tolist()).items())),
        unlabeled=None if labels is None else int((labels < 0).sum()),
        classes=_class_sizes(source.select(readable)),
        unreadable=tuple(SkippedFile(paths[i], image.reason) for i, image in enumerate(facts) if image.reason),
        left_out=tuple(SkippedFile(path, reason) for path, reason in source.skipped),
        short_side=ShortSide(min(pixels), float(np.median(pixels)), max(pixels)) if pixels else None,
        tiny=tuple(ImageSize(paths[i], *facts[i].size) for i in readable if short[i] < TINY),
        small_side=side,
        small=sum(short[i] < side for i in readable),
        blank=tuple(paths[i] for i in readable if facts[i].hash is None) if near else None,
        near=near,
        duplicates=_duplicates(source, facts),
    )


def make_folder(folder: Path) -> None:
    """Make the folder for ``write_report``, or raise an error that says why it cannot be made."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_report(report: CheckReport, folder: Path) -> None:
    """Write ``report.json``, ``duplicates.csv`` and ``skipped.csv``. Names that are not UTF-8 keep their bytes."""
    make_folder(folder)
    with _explained(folder):
        write_atomic(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n")
        skipped = (*report.left_out, *report.unreadable)
        write_skipped([(image.path, image.reason) for image in skipped], folder / "skipped.csv")
        rows = (
            (number, image.path, image.kind, image.split or "", image.label or "")
            for number, group in enumerate(report.duplicates, start=1)
            for image in group.images
        )
        write_table(folder / "duplicates.csv", ("group", "path", "kind", "split", "label"), rows)


def _explained(folder: Path) -> AbstractContextManager[None]:
    return explain_os_errors(f"cannot write into {folder}", "give --out another folder")


def read_facts(
    source: ImageSource, *, near: bool = True, looks: bool = False, workers: int | None = None, progress: bool = True
) -> list[ImageFacts]:
    """Read every image once; ``near`` asks for perceptual hashes, ``looks`` for brightness, contrast and sharpness."""
    files = [source.file(i) for i in range(len(source))]
    lengths = [_length(file) for file in files]
    shared = {length for length, n in Counter(lengths).items() if n > 1 and length >= 0}
    jobs = [(file, source.trim, length in shared, near, looks) for file, length in zip(files, lengths, strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the reasons
        results = (facts for _, facts in bounded_map(_read_facts, jobs, workers))
        return list(track(results, len(jobs), "Reading images", show=progress))


def _length(file: Path) -> int:
    """Return the bytes of a file; -1 if it cannot be reached."""
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _read_facts(job: tuple[Path, int, bool, bool, bool]) -> ImageFacts:
    file, trim, with_content, with_hash, with_looks = job
    try:
        if not is_place(file) and not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            raise UnreachableFile("not a regular file")
        image, size = read_image_and_size(file, max(DECODED, SIDE) if with_looks else DECODED, trim)
        content = content_hash(file) if with_content else None
    except SkipImage as skip:
        return ImageFacts(reason=str(skip))
    except OSError as error:
        return ImageFacts(reason=os_reason(error))
    hashes = perceptual_hashes(image) if with_hash else (None, None)
    looks = measure_looks(image) if with_looks else None
    return ImageFacts(size, content, hashes[0], mirrored=hashes[1], looks=looks)


def _class_sizes(source: ImageSource) -> ClassSizes | None:
    if source.labels is None or not source.classes:
        return None
    counts = np.bincount(source.labels[source.labels >= 0], minlength=len(source.classes))
    low, high = int(counts.argmin()), int(counts.argmax())
    return ClassSizes(
        count=len(source.classes),
        smallest=(source.classes[low], int(counts[low])),
        median=float(np.median(counts)),
        largest=(source.classes[high], int(counts[high])),
        lonely=tuple(name for name, n in zip(source.classes, counts, strict=True) if n < 2),
    )


def _duplicates(source: ImageSource, facts: list[ImageFacts]) -> tuple[DuplicateGroup, ...]:
    contents = [image.content for image in facts]
    members: dict[int, list[int]] = {}
    for i, first in enumerate(group_duplicates(contents, [image.hash for image in facts]).tolist()):
        members.setdefault(first, []).append(i)
    copies = Counter(content for content in contents if content is not None)
    return tuple(_group(source, contents, copies, images) for images in members.values() if len(images) > 1)


def _group(
    source: ImageSource, contents: list[bytes | None], copies: Counter[bytes], images: list[int]
) -> DuplicateGroup:
    twins = []
    for i in images:
        content = contents[i]
        kind = "exact" if content is not None and copies[content] > 1 else "near"
        split = None if source.splits is None else str(source.splits[i])
        label = None if source.labels is None or source.labels[i] < 0 else source.classes[source.labels[i]]
        twins.append(DuplicateImage(str(source.paths[i]), kind, split, label))
    alike = {contents[i] for i in images}
    return DuplicateGroup("exact" if len(alike) == 1 and None not in alike else "near", tuple(twins))
