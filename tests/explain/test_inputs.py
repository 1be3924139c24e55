"""Which images are explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.explain.inputs import select_images, spaced, spaced_over_labels

Paint = Callable[..., Path]


def test_of_a_data_set_the_test_images_evenly_over_the_classes(birds: Path) -> None:
    few = select_images([birds], 4)
    assert len(few) == 4
    assert len(set(few.classes)) == 4
    assert all(name.startswith("test/") for name in few.names)
    assert few.choice == "4 of 24 test images, evenly spaced over 4 classes"
    assert all(file.is_file() for file in few.files)
    assert few.words(0) == (few.classes[0], few.names[0].split("/")[-1])
    everything = select_images([birds], None)
    assert len(everything) == 24
    assert everything.choice == "all 24 test images"


def test_of_an_unlabeled_folder_evenly_from_first_to_last(unlabeled: Path) -> None:
    few = select_images([unlabeled], 3)  # 24 images and a broken one that only opening tells
    assert [few.names[0], few.names[-1]] == ["broken", "image-23"]
    assert few.classes == ["", "", ""]
    assert few.skipped == [("notes.txt", "not an image file (.txt)")]


def test_files_folders_and_lists_together(picture: Paint, tmp_path: Path) -> None:
    one, two, three = picture("a.png"), picture("folder/b.png"), picture("c.jpg")
    (tmp_path / "list.txt").write_text("c.jpg\n")
    found = select_images([one, two.parent, tmp_path / "list.txt"], None)
    assert found.files == [one, two, three]
    assert found.names == ["a", "b", "c"]
    assert select_images([one], 5).files == [one]
    assert select_images([one], 5).choice == "all 1 image"


def test_more_than_there_are_classes() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1, 2, 2])
    assert spaced_over_labels(labels, 3).tolist() == [0, 1, 6]
    five = spaced_over_labels(labels, 5)
    assert len(set(five.tolist())) == 5
    assert set(labels[five]) == {0, 1, 2}
    assert spaced_over_labels(labels, 20).tolist() == list(range(8))
    assert spaced(10, 3).tolist() == [0, 4, 9]


@pytest.mark.parametrize(("given", "words"), [([], "no images"), (["/no/such/place"], "does not exist")])
def test_nothing_to_explain_is_said(given: list[str], words: str) -> None:
    with pytest.raises(FineSightError, match=words):
        select_images(given, 3)
    with pytest.raises(FineSightError, match="at least 1"):
        select_images(["."], 0)
