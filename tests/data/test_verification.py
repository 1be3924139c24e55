"""How a copy differs from the published dataset, in words."""

from pathlib import Path

import numpy as np
import pytest

from finesight.data.layouts.layout import LAYOUTS, official_counts
from finesight.data.sources import ImageSource
from finesight.data.verification import describe_differences, missing_files

PUBLISHED = [layout.name for layout in LAYOUTS.values() if layout.official]


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


def whole_source(kind: str) -> ImageSource:
    official = official_counts(kind)
    assert official is not None
    return source(official.train, official.test, official.classes, kind)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_whole_dataset_misses_nothing(kind: str) -> None:
    assert describe_differences(whole_source(kind)) is None


@pytest.mark.parametrize(
    ("train", "test", "classes", "expected"),
    [
        (8100, 8041, 196, "44 of 8,144 train images missing"),
        (8144, 0, 196, "8,041 of 8,041 test images missing"),
        (8144, 8041, 190, "6 of 196 classes missing"),
        (8144, 8042, 197, "8,042 test images where 8,041 belong; 197 classes where 196 belong"),
    ],
)
def test_other_counts_are_named(train: int, test: int, classes: int, expected: str) -> None:
    assert describe_differences(source(train, test, classes)) == f"not the official cars: {expected}"
    assert describe_differences(source(train, test, classes, "class folders")) is None


def test_what_else_is_missing() -> None:
    whole = whole_source("cars")
    assert whole.labels is not None
    words = describe_differences(whole.select(whole.labels >= 5)) or ""
    assert words.endswith("5 of 196 classes missing (no image of c0, c1, c2 and 2 more)")
    words = describe_differences(ImageSource(whole.root, "cars", whole.paths)) or ""
    assert words == "not the official cars: the train/test split is missing; the labels are missing"
    some = np.where(np.arange(len(whole)) < 1000, -1, whole.labels)
    partly = ImageSource(whole.root, "cars", whole.paths, some, whole.classes, whole.splits)
    assert describe_differences(partly) == "not the official cars: 1,000 labels missing"
    words = describe_differences(whole.select([])) or ""
    assert "8,144 of 8,144 train images missing; 8,041 of 8,041 test images missing; 196 of 196 classes" in words


def test_small_classes_are_named() -> None:
    whole = whole_source("cifar100")
    assert whole.labels is not None
    assert whole.splits is not None
    labels = whole.labels.copy()
    labels[np.flatnonzero((labels == 7) & (whole.splits == "train"))[:3]] = 8  # the sums stay right
    moved = ImageSource(whole.root, "cifar100", whole.paths, labels, whole.classes, whole.splits)
    assert describe_differences(moved) == "not the official cifar100: fewer than 500 train images in 1 class (c7 497)"
    whole = whole_source("inat2019")
    assert whole.labels is not None
    words = describe_differences(whole.select(~((whole.labels < 5) & (whole.splits == "test"))))
    assert words == (
        "not the official inat2019: 15 of 3,030 test images missing; fewer than 3 test images in 5 classes "
        "(c0 0, c1 0, c2 0 and 2 more)"
    )


def test_missing_files(tmp_path: Path, picture) -> None:
    picture("a/1.jpg")
    names = np.array(["a/1.jpg", "a/2.jpg", "gone/3.jpg", str(tmp_path / "a/1.jpg")])
    assert missing_files(ImageSource(tmp_path, "cub", names)) == ["a/2.jpg", "gone/3.jpg"]
