"""Label fractions in files: what is written is read back, and what does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.evaluate import split_indices
from finesight.evaluation.fractions import draw_parts, nested_fractions, read_parts, write_parts
from real_birds import PROJECT, cub_root

Written = tuple[Path, np.ndarray, dict[int, np.ndarray]]


@pytest.fixture(scope="module")
def source(birds: Path) -> ImageSource:
    return open_source(birds)


@pytest.fixture
def written(source: ImageSource, tmp_path: Path) -> Written:
    train = split_indices(source)[0]
    parts = draw_parts(source.labels[train], (100, 50, 20), 3)
    write_parts(tmp_path / "labels.json", source, train, parts, 3)
    return tmp_path / "labels.json", train, parts


def test_there_and_back(written: Written, source: ImageSource) -> None:
    file, train, parts = written
    got, seed = read_parts(file, source, train, (20, 100, 50))
    assert list(got) == [20, 100, 50]
    assert seed == 3
    for percent, part in parts.items():
        assert np.array_equal(got[percent], part)
    told = json.loads(file.read_text())
    assert (told["dataset"], told["train_images"], told["classes"], told["seed"]) == ("lookalikes", 48, 4, 3)
    assert list(told["fractions"]) == ["50", "20"], "a hundred percent is everything"
    listed = [path for paths in told["fractions"]["50"].values() for path in paths]
    assert set(listed) == set(source.paths[train[parts[50]]].tolist())
    assert all(path.split("/")[1] == name for name, paths in told["fractions"]["20"].items() for path in paths)


def test_the_draw_is_the_probes(source: ImageSource) -> None:
    labels = source.labels[split_indices(source)[0]]
    for percent, part in draw_parts(labels, (100, 7), 0).items():
        assert np.array_equal(part, nested_fractions(labels, [percent / 100])[percent / 100])


def test_the_order_of_the_images_does_not_matter(written: Written, source: ImageSource) -> None:
    file, train, parts = written
    turned = source.select(np.arange(len(source))[::-1])
    other = split_indices(turned)[0]
    got, _ = read_parts(file, turned, other, (50,))
    assert set(turned.paths[other[got[50]]]) == set(source.paths[train[parts[50]]])


def test_only_the_first_classes(written: Written, source: ImageSource) -> None:
    few = source.first_classes(2)
    train = split_indices(few)[0]
    got, _ = read_parts(written[0], few, train, (50,), limit_classes=2)
    assert np.array_equal(got[50], draw_parts(few.labels[train], (50,), 3)[50]), "a class is drawn by itself"
    with pytest.raises(FineSightError, match="not among the readable train images"):
        read_parts(written[0], few, train, (50,))


def test_other_images_are_refused(written: Written, source: ImageSource, tmp_path: Path) -> None:
    file, train, _ = written
    told = json.loads(file.read_text())
    first = next(iter(told["fractions"]["50"].values()))

    def refused(message: str, change: object, percents: tuple[int, ...] = (50,)) -> None:
        (tmp_path / "changed.json").write_text(change if isinstance(change, str) else json.dumps(change))
        with pytest.raises(FineSightError, match=message):
            read_parts(tmp_path / "changed.json", source, train, percents)

    refused(r"no images for 10 %.*only for 50 %, 20 %", told, (10,))
    with_path = json.loads(json.dumps(told))
    with_path["fractions"]["50"]["species-000"][0] = "train/species-000/nowhere.png"
    refused("nowhere.png", with_path)
    with_path["fractions"]["50"]["species-000"][0] = str(source.paths[source.splits == "test"][0])
    refused("not among the readable train images", with_path)
    with_path["fractions"]["50"]["species-000"][0] = first[1]
    refused("twice", with_path)
    swapped = json.loads(json.dumps(told))
    swapped["fractions"]["50"]["species-001"].append(first[0])
    swapped["fractions"]["50"]["species-000"].remove(first[0])
    refused("is of class 'species-001' by .* but 'species-000' in", swapped)
    refused("no image", {**told, "fractions": {"50": {}}})
    refused("not JSON", "{")
    for wrong in ([], {}, {**told, "format": "another"}, {**told, "fractions": {"50": ["a"]}}):
        refused("not a list of label fractions", wrong)
    refused("not a list of label fractions", {**told, "fractions": {"50": {"a": [1]}}})
    with pytest.raises(FineSightError, match="cannot be read: no such file"):
        read_parts(tmp_path / "gone.json", source, train, (50,))


def test_unlabeled_images_are_in_no_fraction(source: ImageSource, tmp_path: Path) -> None:
    labels = source.labels.copy()
    labels[::5] = -1
    some = replace(source, labels=labels)
    train = split_indices(some)[0]
    parts = draw_parts(some.labels[train], (100, 50), 0)
    write_parts(tmp_path / "labels.json", some, train, parts, 0)
    got, _ = read_parts(tmp_path / "labels.json", some, train, (100, 50))
    for percent in (100, 50):
        assert np.array_equal(got[percent], parts[percent])
        assert (some.labels[train[got[percent]]] >= 0).all()


def test_names_that_are_not_utf8(source: ImageSource, tmp_path: Path) -> None:
    odd = replace(source, paths=np.array([f"{path}\udce9" for path in source.paths.tolist()]))
    train = split_indices(odd)[0]
    parts = draw_parts(odd.labels[train], (50,), 0)
    write_parts(tmp_path / "labels.json", odd, train, parts, 0)
    assert np.array_equal(read_parts(tmp_path / "labels.json", odd, train, (50,))[0][50], parts[50])


def test_the_shared_lists_of_cub_are_the_draw(tmp_path: Path) -> None:
    """results/labels/cub.json is what the probe draws on the real dataset."""
    cub = open_source(cub_root())
    train = split_indices(cub)[0]
    parts = draw_parts(cub.labels[train], (100, 50, 20), 0)
    shared = PROJECT / "results" / "labels" / "cub.json"
    got, seed = read_parts(shared, cub, train, (100, 50, 20))
    assert seed == 0
    assert {percent: len(part) for percent, part in got.items()} == {100: 5994, 50: 3000, 20: 1200}
    for percent, part in parts.items():
        assert np.array_equal(got[percent], part)
    write_parts(tmp_path / "again.json", cub, train, parts, 0)
    assert (tmp_path / "again.json").read_text() == shared.read_text()
