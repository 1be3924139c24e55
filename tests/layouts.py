"""Small copies of every dataset in its official form, made for tests, with what opening them must give.

A new layout needs an entry in ``EXAMPLES``: its name, and a function for each form that the dataset comes in.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError


@dataclass(frozen=True)
class Example:
    """A copy, and the fields of the ``ImageSource`` that it must become."""

    layout: str
    root: Path
    paths: list[str]
    labels: list[int]
    classes: tuple[str, ...]
    splits: list[str]
    boxes: list[list[float]] | None = None
    super_categories: tuple[str, ...] | None = None
    listed: bool = True  # whether files name the images; else what lies in the folders are the images


def facts(source: ImageSource | Example) -> tuple[Any, ...]:
    """Return paths, labels, classes, splits and boxes as plain lists."""
    assert source.labels is not None
    assert source.splits is not None
    boxes = None if source.boxes is None else np.asarray(source.boxes).tolist()
    return list(source.paths), list(source.labels), source.classes, list(source.splits), boxes


def open_error(data: str | Path) -> str:
    """Return the message with which this dataset is refused."""
    with pytest.raises(FineSightError) as caught:
        open_source(data)
    return str(caught.value)


def write_picture(path: Path, size: tuple[int, int] = (60, 45), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)
    return path


def write_texts(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# --- CUB-200-2011 -------------------------------------------------------------------------------------


def cub(folder: Path) -> Example:
    """Lines are in another order than the images, and ids are not positions."""
    root = folder / "CUB_200_2011"
    for number, name in enumerate(("001.Owl/a b.jpg", "002.Wren/c.jpg", "002.Wren/unlisted.jpg")):
        write_picture(root / "images" / name, seed=number)
    texts = {
        "images.txt": "7 001.Owl/a b.jpg\n9 002.Wren/c.jpg\n",
        "classes.txt": "1 001.Owl\n2 002.Wren\n",
        "image_class_labels.txt": "9 2\n7 1\n",
        "train_test_split.txt": "7 0\n9 1\n",
        "bounding_boxes.txt": "9 1.5 2 3 4\n7 5 6 7 8.25\n",
        "parts/parts.txt": "1 left eye\n2 bill\n",
        "parts/part_locs.txt": "9 2 3.5 4 1\n7 1 0 0 0\n7 2 1 2 1\n",
    }
    write_texts(root, texts)
    paths = ["images/001.Owl/a b.jpg", "images/002.Wren/c.jpg"]
    boxes = [[5, 6, 7, 8.25], [1.5, 2, 3, 4]]
    return Example("cub", root, paths, [0, 1], ("001.Owl", "002.Wren"), ["test", "train"], boxes)


# --- Stanford Cars ------------------------------------------------------------------------------------

CARS = ("Ram C/V Cargo Van 2012", "Audi TTS Coupe 2012", "smart fortwo Convertible 2012")
CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
CARS_TRAIN = [(39, 116, 569, 375, 2, "00001.jpg"), (1, 1, 255, 300, 3, "00002.jpg"), (3, 8, 190, 147, 1, "00003.jpg")]
CARS_TEST = [(30, 52, 246, 147, 3, "00001.jpg"), (100, 19, 576, 203, 2, "00002.jpg")]


def matlab_struct(rows: list[Any], fields: tuple[str, ...] = (*CORNERS, "class", "fname")) -> np.ndarray:
    """A struct array of 1 x N; a number is 1 x 1 in the smallest type that holds it, as MATLAB writes it."""

    def number(value: float) -> np.ndarray:
        return np.array([[value]], np.min_scalar_type(int(value)) if value == int(value) >= 0 else np.float64)

    out = np.empty((1, len(rows)), [(field, object) for field in fields])
    for i, row in enumerate(rows):
        out[0, i] = tuple(value if isinstance(value, str) else number(value) for value in row)
    return out


def matlab_cell(names: tuple[str, ...]) -> np.ndarray:
    out = np.empty((1, len(names)), object)
    out[0] = names
    return out


def cars(folder: Path) -> Example:
    """cars_train.tgz, cars_test.tgz, car_devkit.tgz and the test labels."""
    from scipy.io import savemat

    root = folder / "stanford_cars"
    for name, rows in (("cars_train", CARS_TRAIN), ("cars_test", CARS_TEST)):
        for row in rows:
            write_picture(root / name / row[-1])
    (root / "devkit").mkdir()
    savemat(root / "devkit/cars_meta.mat", {"class_names": matlab_cell(CARS)})
    tables = {"train_annos": matlab_struct(CARS_TRAIN), "test_annos_withlabels": matlab_struct(CARS_TEST)}
    for name, table in tables.items():
        savemat(root / f"devkit/cars_{name}.mat", {"annotations": table}, do_compression=True)
    paths = [f"cars_train/{row[-1]}" for row in CARS_TRAIN] + [f"cars_test/{row[-1]}" for row in CARS_TEST]
    boxes = [[38, 115, 531, 260], [0, 0, 255, 300], [2, 7, 188, 140], [29, 51, 217, 96], [99, 18, 477, 185]]
    return Example("cars", root, paths, [1, 2, 0, 2, 1], CARS, ["train"] * 3 + ["test"] * 2, boxes)


def cars_in_one_folder(folder: Path) -> Example:
    """car_ims.tgz and cars_annos.mat."""
    from scipy.io import savemat

    root = folder / "stanford_cars"
    rows = [
        ("car_ims/000001.jpg", 112, 7, 853, 717, 1, 0),
        ("car_ims/000002.jpg", 48, 24, 441, 202, 1, 1),
        ("car_ims/000003.jpg", 200, 4, 255, 255, 3, 0),
    ]
    for row in rows:
        write_picture(root / row[0])
    table = matlab_struct(rows, ("relative_im_path", *CORNERS, "class", "test"))
    savemat(root / "cars_annos.mat", {"annotations": table, "class_names": matlab_cell(CARS)}, do_compression=True)
    boxes = [[111, 6, 742, 711], [47, 23, 394, 179], [199, 3, 56, 252]]
    return Example("cars", root, [row[0] for row in rows], [0, 0, 2], CARS, ["train", "test", "train"], boxes)


def cars_in_class_folders(folder: Path) -> Example:
    """A mirror's form: the slash of a class name cannot be part of a folder's."""
    root, names = folder / "stanford_cars", sorted(name.replace("/", "-") for name in CARS)
    paths = [f"train/{name}/{i:05d}.jpg" for name in names for i in range(2)]
    paths += [f"test/{name}/00007.jpg" for name in names[1:]]
    for number, path in enumerate(paths):
        write_picture(root / path, seed=number)
    splits = ["train"] * 6 + ["test"] * 2
    return Example("cars", root, paths, [0, 0, 1, 1, 2, 2, 1, 2], tuple(names), splits, listed=False)


# --- FGVC-Aircraft ------------------------------------------------------------------------------------

BANNER = 20  # white rows at the bottom of every image


def aircraft(folder: Path) -> Example:
    data = folder / "fgvc-aircraft-2013b" / "data"
    ids = ["0056978", "1025794", "0034309", "0698580", "0450014"]
    for number, identity in enumerate(ids):
        file = write_picture(data / "images" / f"{identity}.jpg", seed=number)
        with Image.open(file) as image:
            image.paste((255, 255, 255), (0, 45 - BANNER, 60, 45))
            image.save(file, quality=95)
    texts = {
        "variants.txt": "707-320\nF/A-18\nCessna 172\nMD-80\n",
        "families.txt": "Boeing 707\nF/A-18\nCessna 172\nMD-80\n",
        "images_variant_trainval.txt": "0056978 707-320\n1025794 F/A-18\n0034309 Cessna 172\n",
        "images_variant_test.txt": "0698580 MD-80\n0450014 Cessna 172\n",
        "images_box.txt": "1025794 3 4 40 30\n0034309 1 1 60 45\n0056978 1 1 1 1\n"
        "0698580 10 2 59 20\n0450014 2 3 4 5\n",
    }
    write_texts(data, texts)
    boxes = [[0, 0, 1, 1], [2, 3, 38, 27], [0, 0, 60, 45], [9, 1, 50, 19], [1, 2, 3, 3]]
    classes = ("707-320", "F/A-18", "Cessna 172", "MD-80")
    paths = [f"images/{identity}.jpg" for identity in ids]
    return Example("aircraft", data.parent, paths, [0, 1, 2, 3, 2], classes, ["train"] * 3 + ["test"] * 2, boxes)


# --- iNaturalist 2019 ---------------------------------------------------------------------------------

CATEGORIES = [  # not in the order of their ids
    {"id": 400, "name": "Rosa canina", "supercategory": "Plants"},
    {"id": 7, "name": "Parus major", "supercategory": "Birds"},
    {"id": 31, "name": "Parus ater", "supercategory": "Birds"},
]
INAT_TRAIN = {15: ("Plants", 400, "d1"), 3: ("Birds", 7, "b b"), 9: ("Birds", 31, "a2")}
INAT_VAL = {21: ("Birds", 7, "v1"), 20: ("Plants", 400, "v0")}


def inat_list(images: dict[int, tuple[str, int, str]], categories: list[dict[str, Any]] = CATEGORIES) -> str:
    """As the competition wrote it; annotations in an order of their own."""
    files = {i: f"train_val2019/{top}/{category}/{name}.jpg" for i, (top, category, name) in images.items()}
    content = {
        "images": [{"id": i, "file_name": name, "width": 8, "height": 8} for i, name in files.items()],
        "categories": categories,
        "annotations": [{"id": i, "image_id": i, "category_id": images[i][1]} for i in sorted(images)],
    }
    return json.dumps(content)


def inat2019(folder: Path) -> Example:
    root = folder / "inat2019"
    rows = [*INAT_TRAIN.values(), *INAT_VAL.values()]
    paths = [f"train_val2019/{top}/{category}/{name}.jpg" for top, category, name in rows]
    for number, path in enumerate(paths):
        write_picture(root / path, seed=number)
    write_texts(root, {"train2019.json": inat_list(INAT_TRAIN), "val2019.json": inat_list(INAT_VAL)})
    classes = ("Birds/Parus major", "Birds/Parus ater", "Plants/Rosa canina")
    splits = ["train"] * 3 + ["test"] * 2
    return Example("inat2019", root, paths, [2, 0, 1, 0, 2], classes, splits, None, ("Birds", "Birds", "Plants"))


# --- CIFAR-100 ----------------------------------------------------------------------------------------

FINE = ("apple", "aquarium_fish", "baby", "bear", "beaver", "bed")
COARSE = ("aquatic_mammals", "fish", "fruit_and_vegetables", "household_furniture", "large_carnivores", "people")
COARSE_OF = (2, 1, 5, 4, 0, 3)
CIFAR_SIZES = {"train": 7, "test": 4}
META = {b"fine_label_names": [n.encode() for n in FINE], b"coarse_label_names": [n.encode() for n in COARSE]}


def cifar_arrays(split: str) -> tuple[np.ndarray, list[int], list[int]]:
    """Pixels (N, 3072), fine and coarse labels; the last class has no image."""
    rng = np.random.default_rng(len(split))
    fine = [i % (len(FINE) - 1) for i in range(CIFAR_SIZES[split])][::-1]
    return rng.integers(0, 256, (len(fine), 3072), dtype=np.uint8), fine, [COARSE_OF[label] for label in fine]


def old_text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def old_int(number: int) -> bytes:
    if 0 <= number < 256:
        return b"K" + bytes([number])
    return b"M" + struct.pack("<H", number) if 0 <= number < 65536 else b"J" + struct.pack("<i", number)


def old_array(shape: tuple[int, ...], data: bytes, dtype: bytes = b"u1") -> bytes:
    sides = b"(" + b"".join(map(old_int, shape)) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\nq\x20cnumpy\nndarray\nq\x21K\x00\x85q\x22U\x01bq\x23\x87q\x24Rq\x25"
    kind = b"cnumpy\ndtype\nq\x26" + old_text(dtype) + b"K\x00K\x01\x87q\x27Rq\x28"
    kind += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x29b"
    return empty + b"(K\x01" + sides + kind + b"\x89" + old_text(data) + b"tb"


def old_value(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return old_array(value.shape, value.tobytes())
    if isinstance(value, list):
        return b"](" + b"".join(map(old_value, value)) + b"e"
    return old_int(value) if isinstance(value, int) else old_text(value)


def old_pickle(content: dict[bytes, Any]) -> bytes:
    """A pickle as Python 2 and its NumPy wrote it."""
    items = b"".join(old_text(key) + old_value(value) for key, value in content.items())
    return b"\x80\x02}q\x01(" + items + b"u."


def cifar_content(split: str) -> dict[bytes, Any]:
    pixels, fine, coarse = cifar_arrays(split)
    names = [b"bos_taurus_s_%06d.png" % i for i in range(len(pixels))]
    labels = {b"fine_labels": fine, b"coarse_labels": coarse}
    return {b"filenames": names, b"batch_label": b"training batch 1 of 1", **labels, b"data": pixels}


def _cifar_example(root: Path) -> Example:
    labels = {split: cifar_arrays(split)[1] for split in CIFAR_SIZES}
    paths = [f"{split}/{FINE[f]}/{i:05d}.png" for split, fine in labels.items() for i, f in enumerate(fine)]
    splits = [split for split, fine in labels.items() for _ in fine]
    names = [*(COARSE[i] for i in COARSE_OF[:-1]), "unknown"]
    return Example("cifar100", root, paths, labels["train"] + labels["test"], FINE, splits, None, tuple(names))


def cifar_python(folder: Path) -> Example:
    root = folder / "cifar-100-python"
    root.mkdir(parents=True)
    for split in CIFAR_SIZES:
        (root / split).write_bytes(old_pickle(cifar_content(split)))
    (root / "meta").write_bytes(old_pickle(META))
    (root / "file.txt~").write_text("")  # as in the archive
    return _cifar_example(root)


def cifar_binary(folder: Path) -> Example:
    root = folder / "cifar-100-binary"
    root.mkdir(parents=True)
    for split in CIFAR_SIZES:
        pixels, fine, coarse = cifar_arrays(split)
        rows = [bytes([c, f]) + image.tobytes() for c, f, image in zip(coarse, fine, pixels, strict=True)]
        (root / f"{split}.bin").write_bytes(b"".join(rows))
    (root / "fine_label_names.txt").write_text("\n".join(FINE) + "\n\n")
    (root / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    return _cifar_example(root)


# --- look-alikes --------------------------------------------------------------------------------------


def lookalikes(folder: Path) -> Example:
    make_lookalikes(folder / "drawn", LookalikesConfig(species=2, train_per_species=2, test_per_species=1, size=32))
    names = ("species-000", "species-001")
    paths = [f"train/{name}/{i:04d}.png" for name in names for i in range(2)]
    paths += [f"test/{name}/0000.png" for name in names]
    return Example("lookalikes", folder / "drawn", paths, [0, 0, 1, 1, 0, 1], names, ["train"] * 4 + ["test"] * 2)


EXAMPLES: dict[str, list[Callable[[Path], Example]]] = {
    "cub": [cub],
    "cars": [cars, cars_in_one_folder, cars_in_class_folders],
    "aircraft": [aircraft],
    "inat2019": [inat2019],
    "cifar100": [cifar_python, cifar_binary],
    "lookalikes": [lookalikes],
}
