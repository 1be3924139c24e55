"""``DatasetLayout``: a dataset as it lies on disk. Each one is a class in a file of its own and describes itself.

A layout of another distribution registers itself in the same way, in a module that an entry point of the group
``finesight.datasets`` names. Nothing else lists the datasets: commands, evaluation and tables ask the registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from finesight.errors import FineSightError
from finesight.registry import Registry

if TYPE_CHECKING:
    from finesight.data.sources import ImageSource

COPY_AGAIN = "copy the dataset again"


@dataclass(frozen=True)
class DirectoryTree:
    """The files and folders that a dataset consists of, for one of the forms it is given out in."""

    folder: str  # as the archive calls it
    needed: tuple[tuple[str, str], ...]  # path below the folder (that of a folder ends in /) and what it holds
    optional: tuple[tuple[str, str], ...] = ()
    inner: str = ""  # the files of this sub-folder may also lie beside it

    def missing(self, root: Path) -> list[str]:
        """Return the needed paths that ``root`` does not have."""
        return [path for path, _ in self.needed if not self._exists(root, path)]

    def _exists(self, root: Path, path: str) -> bool:
        paths = (path, path.removeprefix(self.inner)) if self.inner else (path,)
        return any((root / p).is_dir() if p.endswith("/") else (root / p).is_file() for p in paths)

    def lines(self) -> list[str]:
        """Return the tree as text, one line for each path."""
        rows = [*self.needed, *((path, f"{about} (may be missing)") for path, about in self.optional)]
        width = max(len(path) for path, _ in rows)
        return [f"{self.folder}/", *(f"    {path:<{width}}  {about}".rstrip() for path, about in rows)]


@dataclass(frozen=True)
class OfficialCounts:
    """How many images and classes the published dataset has; ``None`` where its publishers do not say."""

    train: int
    test: int
    classes: int
    smallest_train: int | None = None  # images of the smallest class in the train split
    smallest_test: int | None = None


class DatasetLayout(ABC):
    """A dataset that is recognized by its files. Subclasses are decorated with ``register_layout``."""

    name: ClassVar[str]  # as in --data NAME:PATH, and the ``kind`` of its sources
    title: ClassVar[str]
    trees: ClassVar[tuple[DirectoryTree, ...]]
    download: ClassVar[str] = ""  # which archives to get
    homepage: ClassVar[str] = ""
    annotations: ClassVar[str] = ""  # what there is beside the classes
    note: ClassVar[str] = ""
    official: ClassVar[OfficialCounts | None] = None
    order: ClassVar[int] = 100  # a folder is tried with the lowest first; lists are in this order too
    listed: ClassVar[bool] = True  # whether `finesight datasets` shows it

    def recognizes(self, root: Path) -> bool:
        """Return whether the folder holds this dataset, whole or in part. By default: all that a tree needs."""
        return any(not tree.missing(root) for tree in self.trees)

    @abstractmethod
    def open(self, root: Path) -> ImageSource:
        """Return the images of the folder; a ``FineSightError`` says which file is missing or damaged."""

    def super_categories(self, source: ImageSource) -> tuple[str, ...] | None:
        """Return the super-category of each of ``source.classes``, or ``None`` if the dataset has none."""
        return None

    def missing_error(self, root: Path, name: str) -> FineSightError:
        """Return the error for a copy of the dataset that lacks a file or folder."""
        return FineSightError(f"{root} is {self.title} but {name} is missing; {COPY_AGAIN}")

    def require_folders(self, root: Path, paths: Iterable[str]) -> None:
        """Raise an error if the folder of an image is missing. Single missing images are skipped when they are read."""
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            if not (root / folder).is_dir():
                parents = [folder, *map(str, Path(folder).parents)]
                raise self.missing_error(root, next(p for p in reversed(parents) if not (root / p).is_dir()) + "/")


L = TypeVar("L", bound=type[DatasetLayout])
LAYOUTS: Registry[DatasetLayout] = Registry(
    "dataset", ("finesight.data.layouts",), "finesight.datasets", order=lambda layout: (layout.order, layout.name)
)


def register_layout(layout: L) -> L:
    """Register the decorated class under its name."""
    LAYOUTS.register(layout.name, layout())
    return layout


def recognize_layout(root: Path) -> DatasetLayout | None:
    """Return the layout of the dataset in a folder, or ``None`` for a folder that holds none of them."""
    return next((layout for layout in LAYOUTS.values() if layout.recognizes(root)), None)


def official_counts(kind: str) -> OfficialCounts | None:
    """Return the published counts for the kind of an ``ImageSource``, ``None`` if it is not a published dataset."""
    layout = LAYOUTS.get(kind)
    return None if layout is None else layout.official


def open_dataset(layout: DatasetLayout, root: Path) -> ImageSource:
    """Open a folder as this dataset, or raise a ``FineSightError`` that says what is missing from the tree."""
    if not root.exists():
        raise FineSightError(f"{root} does not exist; {layout.name}: takes the folder of {layout.title}")
    if not layout.recognizes(root):
        nearest = min(layout.trees, key=lambda tree: len(tree.missing(root)) / len(tree.needed))
        if missing := nearest.missing(root):
            raise _another_folder(layout, root, missing)
    return layout.open(root)


def _another_folder(layout: DatasetLayout, root: Path, missing: list[str]) -> FineSightError:
    words = f"{root} is not {layout.title}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    below = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    for inside in below:  # an archive unpacks into a folder of its own: the one above is an easy mistake
        if layout.recognizes(inside):
            return FineSightError(f"{words}; {inside.name}/ in it looks like it: give {layout.name}:{inside}")
    return FineSightError(f"{words}; `finesight datasets show {layout.name}` prints what belongs there")


def damaged(file: Path, what: object) -> FineSightError:
    """Return the error for a file of a dataset that cannot be used."""
    return FineSightError(f"{file} is damaged ({what}); {COPY_AGAIN}")


def wrong_line(file: Path, number: int, what: str) -> FineSightError:
    """Return the error for one line of a list; ``what`` follows "line N of FILE"."""
    return FineSightError(f"line {number} of {file} {what}; {COPY_AGAIN}")


def numbered_lines(file: Path) -> list[tuple[int, str]]:
    """Return number and text of every line that is not blank, or raise an error if there is none."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(file, error) from error
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FineSightError(f"{file} is empty; {COPY_AGAIN}")
    return lines


def id_and_name(file: Path, number: int, line: str) -> tuple[str, str]:
    """Split a line ``id name``; the name may hold spaces."""
    identity, _, name = line.partition(" ")
    if not (identity.isascii() and identity.isdecimal()) or not name.strip():
        raise wrong_line(file, number, f"is not 'id name': {line[:80]!r}")
    return identity, name.strip()
