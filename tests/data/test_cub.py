import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.geometry import Geometry
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError


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


@pytest.fixture
def small(tmp_path: Path, picture: Callable[..., Path]) -> Path:
    root = tmp_path / "CUB"
    picture("CUB/images/001.Owl/a b.jpg")
    picture("CUB/images/002.Wren/c.jpg")
    picture("CUB/images/002.Wren/unlisted.jpg")
    (root / "parts").mkdir()
    for name, text in {
        "images.txt": "7 001.Owl/a b.jpg\n9 002.Wren/c.jpg\n",
        "classes.txt": "1 001.Owl\n2 002.Wren\n",
        "image_class_labels.txt": "9 2\n7 1\n",
        "train_test_split.txt": "7 0\n9 1\n",
        "bounding_boxes.txt": "9 1.5 2 3 4\n7 5 6 7 8.25\n",
        "parts/parts.txt": "1 left eye\n2 bill\n",
        "parts/part_locs.txt": "9 2 3.5 4 1\n7 1 0 0 0\n7 2 1 2 1\n",
    }.items():
        (root / name).write_text(text)
    return root


def test_rows_are_matched_by_id_not_by_order(small: Path) -> None:
    source = open_source(small)
    assert source.paths.tolist() == ["images/001.Owl/a b.jpg", "images/002.Wren/c.jpg"]
    assert source.labels is not None
    assert source.splits is not None
    assert source.boxes is not None
    assert source.parts is not None
    assert source.labels.tolist() == [0, 1]
    assert source.splits.tolist() == ["test", "train"]
    assert source.boxes.tolist() == [[5, 6, 7, 8.25], [1.5, 2, 3, 4]]
    assert source.part_names == ("left eye", "bill")
    assert source.parts.tolist() == [[[0, 0, 0], [1, 2, 1]], [[0, 0, 0], [3.5, 4, 1]]]
    assert all(source.file(i).is_file() for i in range(2))


@pytest.mark.parametrize(
    "name",
    [
        "train_test_split.txt",
        "classes.txt",
        "image_class_labels.txt",
        "bounding_boxes.txt",
        "parts/parts.txt",
        "parts/part_locs.txt",
    ],
)
def test_a_missing_file_is_named(small: Path, name: str) -> None:
    (small / name).unlink()
    with pytest.raises(FineSightError, match=f"CUB-200-2011 but {name} is missing; copy the dataset again"):
        open_source(small)


@pytest.mark.parametrize(("gone", "named"), [("images/002.Wren", "images/002.Wren/"), ("images", "images/")])
def test_a_missing_image_folder_is_named(small: Path, gone: str, named: str) -> None:
    shutil.rmtree(small / gone)
    with pytest.raises(FineSightError, match=f"CUB-200-2011 but {named} is missing"):
        open_source(small)


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
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_damaged_files_are_named(small: Path, name: str, text: str, expected: str) -> None:
    (small / name).write_text(text)
    with pytest.raises(FineSightError, match=expected):
        open_source(small)
