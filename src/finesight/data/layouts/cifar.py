"""CIFAR-100 in both of its official forms: pickles for Python, or binary records.

Both hold arrays where everything else here reads files, so the images are written once, as PNG files, into the user's
cache; the dataset's own folder may be read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.data.decode import explain_os_errors
from finesight.data.image_hash import content_hash
from finesight.data.layouts.cifar_pickle import MAX_BYTES, read_pickle
from finesight.data.layouts.layout import DatasetLayout, DirectoryTree, OfficialCounts, damaged, register_layout
from finesight.data.sources import ImageSource
from finesight.data.store import default_cache_dir, remove_scratch
from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.io.lock import locked
from finesight.io.progress import track

SIDE = 32
_BYTES = 3 * SIDE * SIDE
_PYTHON = ("train", "test", "meta")
_BINARY = ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")
_SPLITS = ("train", "test")
_FACTS = "cifar100.json"
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Records:
    """The images of one split, in the order of its file."""

    file: Path
    pixels: NDArray[np.uint8]  # (N, 3072): red, green, blue, each row by row
    fine: NDArray[np.int64]
    coarse: NDArray[np.int64]


@dataclass(frozen=True)
class _Facts:
    """What is known beside the pixels; ``cifar100.json`` in the cache holds these fields."""

    classes: tuple[str, ...]
    coarse: tuple[str, ...]  # of each class
    labels: dict[str, list[int]]  # by split

    def paths(self) -> list[str]:
        """Return where each image is put."""
        rows = ((split, i, label) for split in _SPLITS for i, label in enumerate(self.labels[split]))
        return [f"{split}/{self.classes[label]}/{i:05d}.png" for split, i, label in rows]


@register_layout
class Cifar100(DatasetLayout):
    name = "cifar100"
    title = "CIFAR-100"
    download = "cifar-100-python.tar.gz or cifar-100-binary.tar.gz, unpacked"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"
    trees = (
        DirectoryTree(
            "cifar-100-python",
            (("train", "50,000 images"), ("test", "10,000 images"), ("meta", "the names of the classes")),
        ),
        DirectoryTree(
            "cifar-100-binary",
            (
                ("train.bin", "50,000 images"),
                ("test.bin", "10,000 images"),
                ("fine_label_names.txt", "the names of the classes"),
                ("coarse_label_names.txt", "the names of the groups of classes"),
            ),
        ),
    )
    annotations = "nothing more"
    note = "Classes are the 100 fine ones. The images are unpacked once, as PNG files in the cache folder."
    official = OfficialCounts(50000, 10000, 100, smallest_train=500, smallest_test=100)
    order = 50

    def recognizes(self, root: Path) -> bool:
        """Return True for two files of a form, so that a partial copy is not taken for a plain folder."""
        return any(_count_files(*form) >= 2 for form in _forms(root))

    def open(self, root: Path) -> ImageSource:
        """Return the images, train then test, with the fine labels. The first time they are unpacked."""
        folder, names = max(_forms(root), key=lambda form: _count_files(*form) / len(form[1]))
        for name in names:
            if not (folder / name).is_file():
                raise self.missing_error(folder, name)
        target = _target([folder / name for name in names])
        facts = _read_facts(target)
        if facts is None:
            facts, records = _read(folder, names)
            _unpack(target, facts, records)
        labels = np.array([label for split in _SPLITS for label in facts.labels[split]], np.int64)
        splits = np.repeat(_SPLITS, [len(facts.labels[split]) for split in _SPLITS])
        return ImageSource(target, self.name, np.array(facts.paths()), labels, facts.classes, splits)

    def super_categories(self, source: ImageSource) -> tuple[str, ...]:
        """Return the coarse class (fish, flowers, ...) of each class."""
        facts = _read_facts(source.root)
        if facts is None:
            raise FineSightError(f"{source.root} is no longer whole; open CIFAR-100 again")
        return facts.coarse


def _forms(root: Path) -> list[tuple[Path, tuple[str, ...]]]:
    return [
        (root, _PYTHON),
        (root / "cifar-100-python", _PYTHON),
        (root, _BINARY),
        (root / "cifar-100-binary", _BINARY),
    ]


def _count_files(folder: Path, names: tuple[str, ...]) -> int:
    """Count the files that are there. Files called "train" and "test" may be anything: they must begin as pickles."""
    files = [folder / name for name in names if (folder / name).is_file()]
    return len(files) if names is _BINARY else sum(_begins_as_pickle(file) for file in files)


def _begins_as_pickle(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(1) == b"\x80"


# --- reading ------------------------------------------------------------------------------------------


def _read(folder: Path, names: tuple[str, ...]) -> tuple[_Facts, list[_Records]]:
    if names is _PYTHON:
        meta = read_pickle(folder / "meta")
        tables = [_names(folder / "meta", meta.get(f"{level}_label_names")) for level in ("fine", "coarse")]
        records = [_from_pickle(folder / split) for split in _SPLITS]
    else:
        tables = [_names(folder / name, _lines(folder / name)) for name in _BINARY[2:]]
        records = [_from_binary(folder / f"{split}.bin") for split in _SPLITS]
    classes, coarse = tables
    for part in records:
        _require_range(part.file, "fine", part.fine, len(classes))
        _require_range(part.file, "coarse", part.coarse, len(coarse))
    labels = {split: part.fine.tolist() for split, part in zip(_SPLITS, records, strict=True)}
    return _Facts(classes, _coarse_of(classes, coarse, records), labels), records


def _lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().splitlines() if line.strip()]


def _names(file: Path, values: Any) -> tuple[str, ...]:
    """Check that the names are plain words, as the official ones are: folders of images are called so."""
    if not isinstance(values, list) or not values:
        raise damaged(file, "no class names")
    names = [value.decode("latin-1").strip() if isinstance(value, bytes) else value for value in values]
    for name in names:
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_-]{1,80}", name):
            raise damaged(file, f"{str(name)[:40]!a} is no class name" if isinstance(name, str) else "no class names")
    if len({name.lower() for name in names}) < len(names):
        raise damaged(file, "a class name comes twice")
    return tuple(names)


def _from_pickle(file: Path) -> _Records:
    content = read_pickle(file)
    pixels = content.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _BYTES or not len(pixels):
        raise damaged(file, f"data is no array of N x {_BYTES}")
    fine, coarse = (_label_list(file, content, name, len(pixels)) for name in ("fine_labels", "coarse_labels"))
    return _Records(file, pixels, fine, coarse)


def _label_list(file: Path, content: dict[str, Any], name: str, count: int) -> NDArray[np.int64]:
    labels = content.get(name)
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise damaged(file, f"{name} are no list of numbers")
    if len(labels) != count:
        raise damaged(file, f"{len(labels):,} {name} of {count:,} images")
    return np.array(labels, np.int64)


def _from_binary(file: Path) -> _Records:
    """Read records of a coarse label, a fine label and the pixels."""
    size = file.stat().st_size
    if not size or size % (2 + _BYTES) or size > MAX_BYTES:
        raise damaged(file, f"{size:,} bytes are not records of {2 + _BYTES:,} bytes")
    records = np.fromfile(file, np.uint8).reshape(-1, 2 + _BYTES)
    return _Records(file, records[:, 2:], records[:, 1].astype(np.int64), records[:, 0].astype(np.int64))


def _require_range(file: Path, level: str, labels: NDArray[np.int64], classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        found = f"image {wrong[0]:,} has the {level} label {labels[wrong[0]]}"
        raise damaged(file, f"{found}, and there are {classes} such classes")


def _coarse_of(classes: Sequence[str], names: Sequence[str], records: Sequence[_Records]) -> tuple[str, ...]:
    """Return the coarse class of each class, which the files give for each image; "unknown" without images."""
    known: dict[int, int] = {}
    for part in records:
        for fine, coarse in np.unique(np.stack([part.fine, part.coarse], axis=1), axis=0).tolist():
            if known.setdefault(fine, coarse) != coarse:
                raise damaged(part.file, f"{classes[fine]} is in both {names[known[fine]]} and {names[coarse]}")
    return tuple(names[known[fine]] if fine in known else _UNKNOWN for fine in range(len(classes)))


# --- unpacking ----------------------------------------------------------------------------------------


def _target(files: Sequence[Path]) -> Path:
    """Return the folder for the images of these files; other content gives another folder."""
    content = hashlib.blake2b(b"".join(content_hash(file) for file in files), digest_size=16).hexdigest()
    return default_cache_dir().absolute() / "v1-cifar100" / content


def _read_facts(target: Path) -> _Facts | None:
    """Return the facts in the cache, or ``None`` if the images are not all there."""
    try:
        found = json.loads((target / _FACTS).read_bytes())
        labels = {split: [int(label) for label in found["labels"][split]] for split in _SPLITS}
        return _Facts(tuple(found["classes"]), tuple(found["coarse"]), labels)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unpack(target: Path, facts: _Facts, records: Sequence[_Records]) -> None:
    """Write the images into a scratch folder that is renamed when it is complete. One process at a time does it."""
    folder = target.parent
    elsewhere = "name another folder in the environment variable FINESIGHT_CACHE"
    with explain_os_errors(f"the images of CIFAR-100 cannot be unpacked into {folder}", elsewhere):
        folder.mkdir(parents=True, exist_ok=True)
        waiting = "Another process is unpacking CIFAR-100; waiting for it"
        with locked(folder / "lock", on_wait=lambda: console.print(waiting)):
            remove_scratch(folder)
            if _read_facts(target) is not None:
                return
            shutil.rmtree(target, ignore_errors=True)
            with atomic_path(target) as scratch:
                _write(scratch, facts, records)


def _write(folder: Path, facts: _Facts, records: Sequence[_Records]) -> None:
    paths, pixels = facts.paths(), chain.from_iterable(part.pixels for part in records)
    for name in {path.rpartition("/")[0] for path in paths}:
        (folder / name).mkdir(parents=True)
    for path, image in track(zip(paths, pixels, strict=True), len(paths), "Unpacking CIFAR-100"):
        planes = image.reshape(3, SIDE, SIDE).transpose(1, 2, 0)  # (3, h, w) -> (h, w, 3)
        with open(f"{folder}/{path}", "wb") as file:
            Image.fromarray(planes).save(file, "PNG", compress_level=0)  # either way it fills one block of the disk
    (folder / _FACTS).write_text(json.dumps(asdict(facts)), "utf-8")
    os.sync()  # the images must be on the disk before the folder gets its name
