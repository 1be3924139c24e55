"""The named datasets: what to get, where it officially lives, which tree it makes, and which module reads it.

Nothing heavy is imported: ``finesight datasets`` prints this, and every ``--data`` is looked up here.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finesight.errors import FineSightError, unknown

if TYPE_CHECKING:
    from finesight.data.sources import ImageSource

# name: the module of finesight.data with is_ and open_ of that name. Recognized in this order.
_MODULES = {
    "cub": "cub",
    "cars": "cars",
    "aircraft": "aircraft",
    "inat2019": "inat",
    "cifar100": "cifar",
    "lookalikes": "lookalikes",
}
NAMES = tuple(_MODULES)
_CLOSE = 0.6  # how near a mistyped name must be to be taken for one


@dataclass(frozen=True)
class Form:
    """One of the trees a dataset comes in: what must be there, and what may be."""

    folder: str  # as the archive calls it
    needed: tuple[tuple[str, str], ...]  # path below it (a folder ends in /), what it holds
    optional: tuple[tuple[str, str], ...] = ()
    inner: str = ""  # files of this sub-folder may lie beside it just as well

    def missing(self, root: Path) -> list[str]:
        return [path for path, _ in self.needed if not self._there(root, path)]

    def _there(self, root: Path, path: str) -> bool:
        places = (path, path.removeprefix(self.inner)) if self.inner else (path,)
        return any((root / place).is_dir() if place.endswith("/") else (root / place).is_file() for place in places)

    def tree(self) -> list[str]:
        """For people."""
        rows = [*self.needed, *((path, f"{about} (may be missing)") for path, about in self.optional)]
        width = max(len(path) for path, _ in rows)
        return [f"{self.folder}/", *(f"    {path:<{width}}  {about}".rstrip() for path, about in rows)]


@dataclass(frozen=True)
class Dataset:
    name: str
    title: str
    get: str
    home: str
    forms: tuple[Form, ...]
    annotations: str  # what there is beside the classes
    note: str = ""


DATASETS = {
    entry.name: entry
    for entry in (
        Dataset(
            "cub",
            "CUB-200-2011",
            "CUB_200_2011.tgz, unpacked",
            "https://www.vision.caltech.edu/datasets/cub_200_2011/",
            (
                Form(
                    "CUB_200_2011",
                    (
                        ("images/", "one folder of .jpg files per species, 001.Black_footed_Albatross/ and on"),
                        ("images.txt", "id and path of every image"),
                        ("classes.txt", "id and name of every species"),
                        ("image_class_labels.txt", "the species of every image"),
                        ("train_test_split.txt", "1 for train, 0 for test"),
                        ("bounding_boxes.txt", "x, y, width, height of every bird"),
                        ("parts/parts.txt", "the names of the 15 parts"),
                        ("parts/part_locs.txt", "where they are"),
                    ),
                ),
            ),
            "boxes and 15 parts",
        ),
        Dataset(
            "cars",
            "Stanford Cars",
            "cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat; or car_ims.tgz and "
            "cars_annos.mat",
            "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (gone since 2023)",
            (
                Form(
                    "stanford_cars",
                    (
                        ("cars_train/", "00001.jpg and on"),
                        ("cars_test/", "00001.jpg and on"),
                        ("devkit/cars_meta.mat", "the names of the classes"),
                        ("devkit/cars_train_annos.mat", "classes and boxes of the train images"),
                        (
                            "devkit/cars_test_annos_withlabels.mat",
                            "those of the test images; not part of car_devkit.tgz",
                        ),
                    ),
                    inner="devkit/",
                ),
                Form(
                    "stanford_cars",
                    (
                        ("car_ims/", "000001.jpg and on, train and test together"),
                        ("cars_annos.mat", "class, box and split of every image, and the names of the classes"),
                    ),
                ),
            ),
            "boxes",
            "The original host no longer has it and there is no official second one, so nothing is downloaded for you: "
            "use a copy you have, or a mirror you trust, and let `finesight datasets verify` count it.",
        ),
        Dataset(
            "aircraft",
            "FGVC-Aircraft 2013b",
            "fgvc-aircraft-2013b.tar.gz, unpacked",
            "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
            (
                Form(
                    "fgvc-aircraft-2013b",
                    (
                        ("data/images/", "0034309.jpg and on"),
                        ("data/variants.txt", "the names of the 100 variants"),
                        ("data/images_variant_trainval.txt", "id and variant of the train images (or its two halves)"),
                        ("data/images_variant_test.txt", "those of the test images"),
                    ),
                    (("data/images_box.txt", "x1, y1, x2, y2 of every aircraft"),),
                    inner="data/",
                ),
            ),
            "boxes",
            "Classes are the variants; train is the official trainval. The bottom 20 pixel rows of every image name "
            "its photographer: they are cut off.",
        ),
        Dataset(
            "inat2019",
            "iNaturalist 2019",
            "train_val2019.tar.gz and the train and validation annotations, unpacked",
            "https://github.com/visipedia/inat_comp/tree/master/2019",
            (
                Form(
                    "inat2019",
                    (
                        ("train_val2019/", "Birds/202/….jpg: super-category, class, image"),
                        ("train2019.json", "images, annotations and categories of the train split"),
                        ("val2019.json", "those of the validation split"),
                    ),
                    (("categories.json", "the names of the species, given out after the competition"),),
                ),
            ),
            "super-categories in the class names",
            "The labels of the test images were never given out: the validation split is the test split here.",
        ),
        Dataset(
            "cifar100",
            "CIFAR-100",
            "cifar-100-python.tar.gz or cifar-100-binary.tar.gz, unpacked",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            (
                Form(
                    "cifar-100-python",
                    (("train", "50,000 images"), ("test", "10,000 images"), ("meta", "the names of the classes")),
                ),
                Form(
                    "cifar-100-binary",
                    (
                        ("train.bin", "50,000 images"),
                        ("test.bin", "10,000 images"),
                        ("fine_label_names.txt", "the names of the classes"),
                        ("coarse_label_names.txt", "the names of the groups of classes"),
                    ),
                ),
            ),
            "nothing more",
            "Classes are the 100 fine ones. The images are unpacked once, as PNG files in the cache folder.",
        ),
    )
}
_DRAWN = Form("lookalikes", (("lookalikes.json", "written by `finesight lookalikes`"),))


def split_name(data: str | Path) -> tuple[str | None, str]:
    """``cub:PATH`` -> "cub", PATH; nothing and the whole for a path. What exists under the whole name wins."""
    text = str(data)
    name, colon, place = text.partition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):
        return None, text
    if name.lower() in _MODULES:
        if not place:
            raise FineSightError(f"{text} names no folder; write {name.lower()}:PATH")
        return name.lower(), place
    if _meant(name, place):
        raise unknown("dataset", name, NAMES)
    return None, text


def _meant(name: str, place: str) -> bool:
    """Whether it looks like a dataset's name: not a drive (C:), not an address (https://...)."""
    if not re.fullmatch(r"[A-Za-z][\w-]+", name) or place.startswith("//"):
        return False
    near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=_CLOSE)
    return bool(near) or (bool(place) and os.path.exists(os.path.expanduser(place)))


def located(data: str) -> str:
    """With an absolute path, the name before it kept."""
    name, place = split_name(data)
    absolute = str(Path(place).expanduser().absolute())
    return absolute if name is None else f"{name}:{absolute}"


def last_part(data: str) -> str:
    """Of the path, the name before it kept: files lie elsewhere on another machine."""
    name, place = split_name(data)
    last = Path(place).absolute().name
    return last if name is None else f"{name}:{last}"


def dataset(name: str) -> Dataset:
    if name.lower() not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name.lower()]


def title_of(name: str) -> str:
    return DATASETS[name].title if name in DATASETS else "a folder of drawn look-alikes"


def recognized(root: Path) -> str | None:
    """The dataset a folder holds, whole or in part; nothing for a plain folder."""
    return next((name for name in NAMES if _function("is", name)(root)), None)


def open_as(name: str, root: Path) -> ImageSource:
    """The folder as this dataset, whatever else it looks like, or an error that says what is missing from the tree."""
    if not root.exists():
        raise FineSightError(f"{root} does not exist; {name}: takes the folder of {title_of(name)}")
    forms = DATASETS[name].forms if name in DATASETS else (_DRAWN,)
    nearest = min(forms, key=lambda form: len(form.missing(root)) / len(form.needed))
    if (missing := nearest.missing(root)) and not _function("is", name)(root):
        raise FineSightError(_not_that(name, root, missing))
    source: ImageSource = _function("open", name)(root)
    return source


def _function(what: str, name: str) -> Callable[[Path], Any]:
    module = _MODULES[name]
    function: Callable[[Path], Any] = getattr(
        importlib.import_module(f"finesight.data.layouts.{module}"), f"{what}_{module}"
    )
    return function


def _not_that(name: str, root: Path, missing: list[str]) -> str:
    words = f"{root} is not {title_of(name)}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if inside := _inside(name, root):
        return f"{words}; {inside.name}/ in it looks like it: give {name}:{inside}"
    return f"{words}; `finesight datasets show {name}` prints what belongs there" if name in DATASETS else words


def _inside(name: str, root: Path) -> Path | None:
    """Archives unpack into a folder of their own: the one above is an easy mistake."""
    if not root.is_dir():
        return None
    return next((path for path in sorted(root.iterdir()) if path.is_dir() and _function("is", name)(path)), None)
