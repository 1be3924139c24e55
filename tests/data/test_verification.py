from pathlib import Path

import numpy as np
import pytest

from finesight.data.layouts.layout import official_counts, ordered_layouts
from finesight.data.sources import ImageSource
from finesight.data.verification import describe_differences, missing_files


def source(train: int, test: int, classes: int, kind: str = "cars") -> ImageSource:
    total = train + test
    return ImageSource(
        Path("/data"),
        kind,
        np.array([f"{i}.jpg" for i in range(total)]),
        np.arange(total) % classes,
        tuple(f"c{i}" for i in range(classes)),
        np.repeat(["train", "test"], [train, test]),
    )


@pytest.mark.parametrize("kind", [layout.name for layout in ordered_layouts() if layout.official])
def test_a_whole_dataset_misses_nothing(kind: str) -> None:
    assert describe_differences(whole_source(kind)) is None


def whole_source(kind: str) -> ImageSource:
    official = official_counts(kind)
    assert official is not None
    return source(official.train, official.test, official.classes, kind)


def test_other_kinds_have_no_official_size() -> None:
    assert describe_differences(source(1, 1, 1, "class folders")) is None


def test_what_is_missing_is_named() -> None:
    assert describe_differences(source(8100, 8041, 196)) == "not the official cars: 44 of 8,144 train images missing"
    assert describe_differences(source(8144, 0, 196)) == "not the official cars: 8,041 of 8,041 test images missing"
    assert describe_differences(source(8144, 8041, 190)) == "not the official cars: 6 of 196 classes missing"


def test_what_is_too_much_is_named() -> None:
    assert (
        describe_differences(source(8144, 8042, 197))
        == "not the official cars: 8,042 test images where 8,041 belong; 197 classes where 196 belong"
    )


def test_classes_without_an_image_are_named() -> None:
    whole = whole_source("cars")
    assert whole.labels is not None
    words = describe_differences(whole.select(whole.labels >= 5))
    assert words is not None
    assert words.endswith("5 of 196 classes missing (no image of c0, c1, c2 and 2 more)")


def test_missing_labels_and_splits_are_named() -> None:
    whole = whole_source("cars")
    bare = ImageSource(whole.root, "cars", whole.paths)
    words = describe_differences(bare)
    assert words == "not the official cars: the train/test split is missing; the labels are missing"
    assert whole.labels is not None
    some = np.where(np.arange(len(whole)) < 1000, -1, whole.labels)
    partly = ImageSource(whole.root, "cars", whole.paths, some, whole.classes, whole.splits)
    assert describe_differences(partly) == "not the official cars: 1,000 labels missing"


def test_an_empty_source() -> None:
    words = describe_differences(whole_source("cars").select([]))
    assert words is not None
    assert "8,144 of 8,144 train images missing; 8,041 of 8,041 test images missing; 196 of 196 classes" in words


# --- the smallest class -------------------------------------------------------------------------------


def test_small_classes_are_named() -> None:
    whole = whole_source("cifar100")
    assert whole.labels is not None
    assert whole.splits is not None
    labels = whole.labels.copy()
    labels[np.flatnonzero((labels == 7) & (whole.splits == "train"))[:3]] = 8  # the sums stay right
    moved = ImageSource(whole.root, "cifar100", whole.paths, labels, whole.classes, whole.splits)
    assert describe_differences(moved) == "not the official cifar100: fewer than 500 train images in 1 class (c7 497)"


def test_a_class_may_lack_one_split() -> None:
    whole = whole_source("inat2019")
    assert whole.labels is not None
    assert whole.splits is not None
    words = describe_differences(whole.select(~((whole.labels < 5) & (whole.splits == "test"))))
    assert words == (
        "not the official inat2019: 15 of 3,030 test images missing; fewer than 3 test images in 5 classes "
        "(c0 0, c1 0, c2 0 and 2 more)"
    )


def test_absent_files(tmp_path: Path, picture) -> None:
    picture("a/1.jpg")
    names = np.array(["a/1.jpg", "a/2.jpg", "gone/3.jpg", str(tmp_path / "a/1.jpg")])
    assert missing_files(ImageSource(tmp_path, "cub", names)) == ["a/2.jpg", "gone/3.jpg"]
    assert missing_files(ImageSource(tmp_path, "cub", names[[0, 3]])) == []
