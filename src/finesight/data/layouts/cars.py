"""Stanford Cars in both of its official layouts: split, classes and boxes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.listing import split_folders
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

_FOLDERS = ("cars_train", "cars_test", "car_ims")
_META = "cars_meta.mat"
_TRAIN = "cars_train_annos.mat"
_TEST = "cars_test_annos_withlabels.mat"
_TEST_UNLABELED = "cars_test_annos.mat"
_ALL = "cars_annos.mat"
_CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
_AGAIN = "copy the dataset again"


@dataclass(frozen=True)
class _Annotations:
    """One row per image, in the order of the file."""

    names: list[str]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]
    is_test: NDArray[np.bool_]


def is_cars(root: Path) -> bool:
    """Two of the layouts' marks are enough: a partial copy shall be called one, not a plain folder.

    Annotations beside train and test folders are no such copy: those images were sorted into classes by someone.
    """
    folders = sum((root / name).is_dir() for name in _FOLDERS)
    files = sum(_find(root, name) is not None for name in (_META, _TRAIN, _TEST, _TEST_UNLABELED, _ALL))
    return folders + files >= 2 and (folders > 0 or not split_folders(root))


def open_cars(root: Path) -> ImageSource:
    """Images in the order of the annotations: ``cars_train`` then ``cars_test``, or those of ``car_ims``."""
    one_folder = (root / "car_ims").is_dir() and (_find(root, _ALL) or not (root / "cars_train").is_dir())
    return _open_one_folder(root) if one_folder else _open_two_folders(root)


def _open_two_folders(root: Path) -> ImageSource:
    meta, train_file = _require(root, _META), _require(root, _TRAIN)
    if _find(root, _TEST) is None and _find(root, _TEST_UNLABELED) is not None:
        raise FineSightError(
            f"{root} is Stanford Cars but {_TEST} is missing; {_TEST_UNLABELED} has no labels, so without it "
            "there are no test labels: put it into devkit/"
        )
    test_file = _require(root, _TEST)
    classes = _class_names(meta)
    train = _annotations(train_file, "fname", len(classes))
    test = _annotations(test_file, "fname", len(classes))
    folders = {name: _image_folder(root, name) for name in ("cars_train", "cars_test")}
    return ImageSource(
        root,
        "cars",
        np.array([f"{f}/{n}" for f, part in zip(folders.values(), (train, test), strict=True) for n in part.names]),
        np.concatenate([train.labels, test.labels]),
        classes,
        np.repeat(["train", "test"], [len(train.names), len(test.names)]),
        np.concatenate([train.boxes, test.boxes]),
    )


def _open_one_folder(root: Path) -> ImageSource:
    file = _require(root, _ALL, "")
    classes = _class_names(file)
    all_of_them = _annotations(file, "relative_im_path", len(classes))
    return ImageSource(
        root,
        "cars",
        np.array(all_of_them.names),
        all_of_them.labels,
        classes,
        np.where(all_of_them.is_test, "test", "train"),
        all_of_them.boxes,
    )


def _find(root: Path, name: str) -> Path | None:
    return next((place / name for place in (root / "devkit", root) if (place / name).is_file()), None)


def _require(root: Path, name: str, folder: str = "devkit/") -> Path:
    file = _find(root, name)
    if file is None:
        raise FineSightError(f"{root} is Stanford Cars but {folder}{name} is missing; {_AGAIN}")
    return file


def _image_folder(root: Path, name: str) -> str:
    """Mirrors unpack ``cars_train.zip`` into a folder of that name, which then holds another."""
    if not (root / name).is_dir():
        raise FineSightError(f"{root} is Stanford Cars but {name}/ is missing; {_AGAIN}")
    return f"{name}/{name}" if (root / name / name).is_dir() else name


def _variable(file: Path, name: str) -> NDArray[Any]:
    """One variable of a MATLAB file as a vector."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise FineSightError(f"{file} is a MATLAB file, which SciPy reads; install it: pip install scipy") from error
    data = io.BytesIO(file.read_bytes())  # apart, so that a file that cannot be read is not called damaged
    try:
        content = loadmat(data, squeeze_me=True, struct_as_record=True, variable_names=[name])
    except Exception as error:  # whatever the parser stumbles over: it has no error of its own
        raise _damaged(file, str(error) or type(error).__name__) from error
    if name not in content:
        raise _damaged(file, f"no {name}")
    return np.atleast_1d(content[name])


def _damaged(file: Path, what: str) -> FineSightError:
    return FineSightError(f"{file} is damaged ({what}); {_AGAIN}")


def _class_names(file: Path) -> tuple[str, ...]:
    return tuple(_texts(file, "class_names", _variable(file, "class_names")))


def _texts(file: Path, what: str, values: NDArray[Any]) -> list[str]:
    texts: list[str] = values.tolist()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _damaged(file, f"{what} are not all names")
    return texts


def _annotations(file: Path, name_field: str, classes: int) -> _Annotations:
    table = _variable(file, "annotations")
    with_test = name_field == "relative_im_path"
    fields = (*_CORNERS, "class", *(("test",) if with_test else ()))
    for field in (*fields, name_field):
        if field not in (table.dtype.names or ()):
            raise _damaged(file, f"no {field} in the annotations")
    names = _texts(file, name_field, table[name_field])
    # the file's own types are the smallest that hold a value: 200 + 100 would not fit
    try:
        numbers = np.stack([table[field].astype(np.float64) for field in fields], axis=1)
    except (TypeError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    labels = numbers[:, 4]
    wrong = labels[~np.isin(labels, np.arange(1, classes + 1))]
    if len(wrong):
        raise _damaged(file, f"class {wrong[0]:g} is not one of 1 to {classes}")
    is_test = numbers[:, 5] != 0 if with_test else np.zeros(len(names), np.bool_)
    return _Annotations(names, labels.astype(np.int64) - 1, _boxes(numbers[:, :4]), is_test)


def _boxes(corners: NDArray[np.float64]) -> NDArray[np.float32]:
    """x1, y1, x2, y2 as MATLAB counts (the first pixel is 1, both corners inside) -> x, y, width, height."""
    low, high = corners[:, :2] - 1, corners[:, 2:]
    return np.concatenate([low, high - low], axis=1).astype(np.float32)
