import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.geometry import Geometry
from finesight.data.sources import ImageSource, open_source
from finesight.data.verification import describe_differences, verify
from finesight.errors import FineSightError
from layouts import cub as cub_copy


@pytest.fixture(scope="module")
def cub(cub_root: Path) -> ImageSource:
    return open_source(cub_root)


def test_the_real_dataset(cub: ImageSource) -> None:
    assert cub.kind == "cub"
    assert len(cub) == 11788
    assert len(cub.split("train")) == 5994
    assert len(cub.split("test")) == 5794
    assert len(cub.classes) == 200
    assert cub.labels is not None
    assert set(cub.labels.tolist()) == set(range(200))
    folders = [path.split("/")[1] for path in cub.paths.tolist()]
    assert folders == [cub.classes[label] for label in cub.labels]
    assert cub.part_names[:2] == ("back", "beak")
    assert cub.parts is not None
    assert cub.parts.shape == (11788, 15, 3)
    assert set(np.unique(cub.parts[:, :, 2])) == {0, 1}
    assert "11,788 images, 200 classes, 5,994 train + 5,794 test, boxes, 15 parts" in cub.describe()


def test_the_real_dataset_is_complete(cub: ImageSource) -> None:
    found = verify(f"cub:{cub.root}")
    assert (found.complete, found.problems) == (True, ())
    assert (found.images, found.train, found.test, found.classes, found.parts) == (11788, 5994, 5794, 200, 15)
    assert found.words().startswith("complete: ")
    assert len(open_source(f"cub:{cub.root}")) == 11788
    for split, smallest in (("train", 29), ("test", 11)):
        assert np.bincount(cub.split(split).labels, minlength=200).min() == smallest
    words = describe_differences(cub.first_classes(197))
    assert words is not None
    assert words.startswith("not the official cub: 90 of 5,994 train images missing; 90 of 5,794 test images missing")
    assert words.endswith(
        "3 of 200 classes missing (no image of 198.Rock_Wren, 199.Winter_Wren, 200.Common_Yellowthroat)"
    )


def test_the_real_annotations_against_their_own_text(cub: ImageSource) -> None:
    """Line by line, for a sample, without the loader's arrays."""
    splits = (cub.root / "train_test_split.txt").read_text().split("\n")
    boxes = (cub.root / "bounding_boxes.txt").read_text().split("\n")
    names = (cub.root / "images.txt").read_text().split("\n")
    parts = (cub.root / "parts/part_locs.txt").read_text().split("\n")
    assert cub.splits is not None
    assert cub.boxes is not None
    assert cub.parts is not None
    for i in range(0, len(cub), 997):
        assert names[i] == f"{i + 1} {cub.paths[i].removeprefix('images/')}"
        assert splits[i] == f"{i + 1} {int(cub.splits[i] == 'train')}"
        assert [float(v) for v in boxes[i].split()[1:]] == pytest.approx(cub.boxes[i].tolist())
        for p in range(15):
            image, part, *values = parts[15 * i + p].split()
            assert (image, part) == (str(i + 1), str(p + 1))
            assert [float(v) for v in values] == pytest.approx(cub.parts[i, p].tolist())


def test_real_boxes_lie_in_their_images(cub: ImageSource) -> None:
    """The official boxes of about 30 images reach past the border, by 11 pixels at most; clipped, none does
    and hardly anything of a box is lost."""
    assert cub.boxes is not None
    sample = [*range(0, len(cub), 20), 1217, 5006]  # the two that reach furthest
    past = 0
    for i in sample:
        with Image.open(cub.file(i)) as image:
            width, height = image.size
        x, y, w, h = cub.boxes[i]
        assert 0 <= x < width
        assert 0 <= y < height
        assert min(w, h) > 0
        past += x + w > width or y + h > height
        geometry = Geometry.fit(width, height, 128)
        left, top, box_w, box_h = geometry.box(cub.boxes[i])
        cached_h, cached_w = geometry.size
        assert left >= 0
        assert top >= 0
        assert left + box_w <= cached_w + 1e-3
        assert top + box_h <= cached_h + 1e-3
        scale = cached_w / geometry.crop[2] * cached_h / geometry.crop[3]
        if geometry.crop[2:] == (width, height):
            assert box_w * box_h > 0.9 * w * h * scale
    assert past <= 0.01 * len(sample) + 2


def test_real_images_through_the_cache(cub: ImageSource, tmp_path: Path) -> None:
    few = cub.select(range(0, len(cub), 1200))
    cache = open_cache(few, 64, cache_dir=tmp_path, progress=False)
    assert len(cache) == len(few)
    for i in range(len(cache)):
        mask = cache.mask(i)
        assert mask is not None
        assert mask.shape == cache.image(i).shape[:2]
        assert 0.02 < mask.mean() < 1


# --- a small copy, to break ---------------------------------------------------------------------------


def test_parts_are_matched_by_id_not_by_order(tmp_path: Path) -> None:
    source = open_source(cub_copy(tmp_path).root)
    assert source.part_names == ("left eye", "bill")
    assert source.parts is not None
    assert source.parts.tolist() == [[[0, 0, 0], [1, 2, 1]], [[0, 0, 0], [3.5, 4, 1]]]


@pytest.mark.parametrize(("gone", "named"), [("images/002.Wren", "images/002.Wren/"), ("images", "images/")])
def test_a_missing_image_folder_is_named(tmp_path: Path, gone: str, named: str) -> None:
    root = cub_copy(tmp_path).root
    shutil.rmtree(root / gone)
    with pytest.raises(FineSightError, match=f"CUB-200-2011 but {named} is missing"):
        open_source(root)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("images.txt", "", "images.txt is empty"),
        ("images.txt", "7 a.jpg\nhello\n", "line 2 of .*images.txt is not 'id name': 'hello'"),
        ("bounding_boxes.txt", "7 1 2 3 4\n", "bounding_boxes.txt describes 1 of 2 images"),
        ("bounding_boxes.txt", "7 1 2 3 4\n7 1 2 3 4\n", "bounding_boxes.txt describes 1 of 2 images"),
        ("bounding_boxes.txt", "7 1 2 3\n9 1 2 3\n", "bounding_boxes.txt has 4 columns, not 5"),
        ("bounding_boxes.txt", "7 1 2 3 x\n9 1 2 3 4\n", "bounding_boxes.txt is damaged"),
        ("bounding_boxes.txt", "", "bounding_boxes.txt"),
        ("train_test_split.txt", "7 1\n8 0\n", "train_test_split.txt names 8, which is not listed"),
        ("image_class_labels.txt", "7 1\n9 3\n", "image_class_labels.txt names 3, which is not listed"),
        ("parts/part_locs.txt", "7 3 1 2 1\n", "part_locs.txt names 3, which is not listed"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    root = cub_copy(tmp_path).root
    (root / name).write_text(text)
    with pytest.raises(FineSightError, match=expected):
        open_source(root)
