"""Stanford Cars: split, classes and boxes in its official forms, split and classes in the form of many mirrors."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.layouts.layout import DatasetLayout, DirectoryTree, OfficialCounts, damaged, register_layout
from finesight.data.listing import split_folders
from finesight.data.sources import ImageSource, open_splits
from finesight.errors import FineSightError

_FOLDERS = ("cars_train", "cars_test", "car_ims")
_META = "cars_meta.mat"
_TRAIN = "cars_train_annos.mat"
_TEST = "cars_test_annos_withlabels.mat"
_TEST_UNLABELED = "cars_test_annos.mat"
_ALL = "cars_annos.mat"
_CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
_SOME_CLASSES = (  # two as folders in train and one in test: these are Stanford Cars, not somebody else's cars
    *("AM General Hummer SUV 2000", "Audi TTS Coupe 2012", "BMW M3 Coupe 2012", "Dodge Caliber Wagon 2012"),
    *("Ford GT Coupe 2006", "Hyundai Sonata Sedan 2012", "Nissan Juke Hatchback 2012", "smart fortwo Convertible 2012"),
)


@dataclass(frozen=True)
class _Annotations:
    """One row per image, in the order of the file."""

    names: list[str]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]
    is_test: NDArray[np.bool_]


@register_layout
class Cars(DatasetLayout):
    name = "cars"
    title = "Stanford Cars"
    download = (
        "cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat; or car_ims.tgz and "
        "cars_annos.mat"
    )
    homepage = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (gone since 2023)"
    trees = (
        DirectoryTree(
            "stanford_cars",
            (
                ("cars_train/", "00001.jpg and on"),
                ("cars_test/", "00001.jpg and on"),
                ("devkit/cars_meta.mat", "the names of the classes"),
                ("devkit/cars_train_annos.mat", "classes and boxes of the train images"),
                ("devkit/cars_test_annos_withlabels.mat", "those of the test images; not part of car_devkit.tgz"),
            ),
            inner="devkit/",
        ),
        DirectoryTree(
            "stanford_cars",
            (
                ("car_ims/", "000001.jpg and on, train and test together"),
                ("cars_annos.mat", "class, box and split of every image, and the names of the classes"),
            ),
        ),
        DirectoryTree(
            "stanford_cars",
            (
                ("train/Audi TTS Coupe 2012/", "one folder of images per class, as many mirrors have it; no boxes"),
                ("train/smart fortwo Convertible 2012/", "and so on"),
                ("test/smart fortwo Convertible 2012/", "the same classes"),
            ),
        ),
    )
    annotations = "boxes"
    note = (
        "The original host no longer has it and there is no official second one, so nothing is downloaded for you: "
        "use a copy you have, or a mirror you trust, and let `finesight datasets verify` count it."
    )
    official = OfficialCounts(8144, 8041, 196)
    order = 20

    def recognizes(self, root: Path) -> bool:
        """Return True for two of the dataset's parts, so that a partial copy is not taken for a plain folder.

        Annotations beside train and test folders do not count: there, the names of the class folders tell.
        """
        folders = sum((root / name).is_dir() for name in _FOLDERS)
        train, test = (sum((root / split / name).is_dir() for name in _SOME_CLASSES) for split in ("train", "test"))
        if folders == 0 and train >= 2 and test >= 1:
            return True
        files = sum(_find(root, name) is not None for name in (_META, _TRAIN, _TEST, _TEST_UNLABELED, _ALL))
        return folders + files >= 2 and (folders > 0 or not split_folders(root))

    def open(self, root: Path) -> ImageSource:
        """Return the images in the order of the annotations: ``cars_train`` then ``cars_test``, or ``car_ims``.

        Those in class folders are in the order of their paths, train before test.
        """
        if not any((root / name).is_dir() for name in _FOLDERS) and (splits := split_folders(root)):
            return replace(open_splits(root, splits), kind=self.name)
        one_folder = (root / "car_ims").is_dir() and (_find(root, _ALL) or not (root / "cars_train").is_dir())
        return self._open_one_folder(root) if one_folder else self._open_two_folders(root)

    def _open_two_folders(self, root: Path) -> ImageSource:
        meta, train_file = self._require(root, _META), self._require(root, _TRAIN)
        if _find(root, _TEST) is None and _find(root, _TEST_UNLABELED) is not None:
            raise FineSightError(
                f"{root} is Stanford Cars but {_TEST} is missing; {_TEST_UNLABELED} has no labels, so without it "
                "there are no test labels: put it into devkit/"
            )
        test_file = self._require(root, _TEST)
        classes = _class_names(meta)
        train, test = (_annotations(file, "fname", len(classes)) for file in (train_file, test_file))
        folders = (self._image_folder(root, "cars_train"), self._image_folder(root, "cars_test"))
        paths = [f"{folder}/{name}" for folder, part in zip(folders, (train, test), strict=True) for name in part.names]
        splits = np.repeat(["train", "test"], [len(train.names), len(test.names)])
        labels, boxes = np.concatenate([train.labels, test.labels]), np.concatenate([train.boxes, test.boxes])
        return ImageSource(root, self.name, np.array(paths), labels, classes, splits, boxes)

    def _open_one_folder(self, root: Path) -> ImageSource:
        file = self._require(root, _ALL, "")
        classes = _class_names(file)
        table = _annotations(file, "relative_im_path", len(classes))
        splits = np.where(table.is_test, "test", "train")
        return ImageSource(root, self.name, np.array(table.names), table.labels, classes, splits, table.boxes)

    def _require(self, root: Path, name: str, folder: str = "devkit/") -> Path:
        file = _find(root, name)
        if file is None:
            raise self.missing_error(root, f"{folder}{name}")
        return file

    def _image_folder(self, root: Path, name: str) -> str:
        """Return the folder of the images: ``cars_train.zip`` of some mirrors holds ``cars_train/cars_train/``."""
        if not (root / name).is_dir():
            raise self.missing_error(root, f"{name}/")
        return f"{name}/{name}" if (root / name / name).is_dir() else name


def _find(root: Path, name: str) -> Path | None:
    return next((place / name for place in (root / "devkit", root) if (place / name).is_file()), None)


def _variable(file: Path, name: str) -> NDArray[Any]:
    """Return one variable of a MATLAB file as a vector."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise FineSightError(f"{file} is a MATLAB file, which SciPy reads; install it: pip install scipy") from error
    data = io.BytesIO(file.read_bytes())  # apart, so that a file that cannot be read is not called damaged
    try:
        content = loadmat(data, squeeze_me=True, struct_as_record=True, variable_names=[name])
    except Exception as error:  # whatever the parser stumbles over: it has no error of its own
        raise damaged(file, str(error) or type(error).__name__) from error
    if name not in content:
        raise damaged(file, f"no {name}")
    return np.atleast_1d(content[name])


def _class_names(file: Path) -> tuple[str, ...]:
    return tuple(_texts(file, "class_names", _variable(file, "class_names")))


def _texts(file: Path, what: str, values: NDArray[Any]) -> list[str]:
    texts: list[str] = values.tolist()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise damaged(file, f"{what} are not all names")
    return texts


def _annotations(file: Path, name_field: str, classes: int) -> _Annotations:
    table = _variable(file, "annotations")
    with_test = name_field == "relative_im_path"
    fields = (*_CORNERS, "class", *(("test",) if with_test else ()))
    for field in (*fields, name_field):
        if field not in (table.dtype.names or ()):
            raise damaged(file, f"no {field} in the annotations")
    names = _texts(file, name_field, table[name_field])
    # the file's own types are the smallest that hold a value: 200 + 100 would not fit
    try:
        numbers = np.stack([table[field].astype(np.float64) for field in fields], axis=1)
    except (TypeError, ValueError) as error:
        raise damaged(file, str(error)) from error
    labels = numbers[:, 4]
    wrong = labels[~np.isin(labels, np.arange(1, classes + 1))]
    if len(wrong):
        raise damaged(file, f"class {wrong[0]:g} is not one of 1 to {classes}")
    is_test = numbers[:, 5] != 0 if with_test else np.zeros(len(names), np.bool_)
    return _Annotations(names, labels.astype(np.int64) - 1, _boxes(numbers[:, :4]), is_test)


def _boxes(corners: NDArray[np.float64]) -> NDArray[np.float32]:
    """Turn x1, y1, x2, y2 as MATLAB counts (the first pixel is 1, both corners inside) into x, y, width, height."""
    low, high = corners[:, :2] - 1, corners[:, 2:]
    return np.concatenate([low, high - low], axis=1).astype(np.float32)
