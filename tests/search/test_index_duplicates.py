"""Duplicates of an index against comparing all with all."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.clusters import duplicates as duplicates_command
from finesight.errors import FineSightError
from finesight.search.base import IndexItem, NewItems
from finesight.search.duplicates import find_duplicates
from finesight.search.faiss_index import FaissIndex
from indexes import SPACES, batch, empty_index, filled_index, meta, units
from serving import drawn

app = typer.Typer()
app.command()(duplicates_command)


def connected(vectors: np.ndarray, threshold: float) -> set[frozenset[int]]:
    """Groups by going from each image to all that are near, one pair at a time. Ids count from 1."""
    left, found = set(range(len(vectors))), set()
    while left:
        group, todo = set(), [left.pop()]
        while todo:
            one = todo.pop()
            group.add(one)
            near = {two for two in left if float(vectors[one] @ vectors[two]) >= threshold}
            left -= near
            todo += near
        if len(group) > 1:
            found.add(frozenset(n + 1 for n in group))
    return found


@pytest.mark.parametrize("held", [1 << 25, 50 * 24, 1])
def test_groups_are_those_of_brute_force(tmp_path: Path, held: int) -> None:
    random = np.random.default_rng(3)
    vectors = units(120)
    vectors = np.concatenate([vectors, vectors[random.integers(0, 120, 60)] + 0.02 * units(60, seed=1)])
    vectors = np.concatenate([vectors, vectors[100:130] + 0.03 * units(30, seed=2)])  # chains
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = filled_index(tmp_path / "index", vectors)
    for threshold in (0.9, 0.9995):
        found = find_duplicates(index, threshold, held_numbers=held, rows=32)
        assert {frozenset(item.id for item in group.items) for group in found} == connected(vectors, threshold)
        for group in found:
            ids = np.array([item.id for item in group.items])
            np.testing.assert_allclose(group.scores, vectors[ids - 1] @ vectors[ids[0] - 1], atol=1e-6)
    sizes = [len(group.items) for group in find_duplicates(index, 0.9)]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) > 2


def test_after_changes(tmp_path: Path) -> None:
    index = filled_index(tmp_path / "index", np.repeat(units(10), 2, axis=0))
    assert len(find_duplicates(index)) == 10
    index.remove(np.arange(1, 20, 2))
    assert find_duplicates(index) == []
    index.add(batch([900], units(1)))
    assert [{item.id for item in group.items} for group in find_duplicates(index)] == [{2, 900}]
    assert find_duplicates(empty_index(tmp_path / "empty")) == []


@pytest.fixture
def gallery(tmp_path: Path) -> FaissIndex:
    """Equal files with vectors that differ, one picture in two sizes, and two that are alike to the network alone."""
    images = tmp_path / "images"
    images.mkdir()
    large = drawn(size=(300, 240), seed=1)
    small = io.BytesIO()
    Image.open(io.BytesIO(large)).resize((150, 120)).save(small, "JPEG", quality=80)
    files = {
        "copy.png": drawn(seed=0), "original.png": drawn(seed=0),
        "large.png": large, "small.jpg": small.getvalue(),
        "one.png": drawn(seed=2), "two.png": drawn(seed=3), "alone.png": drawn(seed=4),
    }  # fmt: skip
    vectors = units(7)
    vectors[3], vectors[5] = vectors[2], vectors[4]
    (tmp_path / "no-encoder").mkdir()
    index = FaissIndex.create(tmp_path / "index", meta(images), tmp_path / "no-encoder")
    items = []
    for number, (name, data) in enumerate(files.items(), 1):
        (images / name).write_bytes(data)
        width, height = Image.open(io.BytesIO(data)).size
        items.append(IndexItem(number, name, len(data), number, width, height, np.zeros((2, 2), np.float32)))
    index.add(NewItems(items, dict.fromkeys(SPACES, vectors)))
    index.finish()
    return index


def test_what_kind_of_copies_they_are(gallery: FaissIndex, tmp_path: Path) -> None:
    words = [str(gallery.folder), "--json", "--quiet", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    told = json.loads(result.stdout)
    kinds = {group["kind"]: [item["path"] for item in group["items"]] for group in told["groups"]}
    assert kinds == {
        "bytes": ["copy.png", "original.png"],
        "picture": ["large.png", "small.jpg"],  # the larger first: the one to keep
        "features": kinds["features"],
    }
    assert sorted(kinds["features"]) == ["one.png", "two.png"]
    assert (told["items"], told["extra"]) == (7, 3)
    with open(tmp_path / "out" / "duplicates.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert next(row["path"] for row in rows if row["keep"]) == "copy.png"
    assert len(rows) == 6
    assert (tmp_path / "out" / "duplicates.html").read_text().count("<img ") == 3
    assert (tmp_path / "out" / "duplicates-01.png").stat().st_size > 5000
    plain = CliRunner().invoke(app, words[:1], catch_exceptions=False).stdout
    assert "3 groups: 3 of 7 images could go." in plain
    assert "the same picture" in plain


def test_files_that_are_gone(gallery: FaissIndex, tmp_path: Path) -> None:
    """Features are still there: they may be found, but not called equal."""
    for file in (tmp_path / "images").iterdir():
        file.unlink()
    assert [group.kind for group in find_duplicates(gallery)] == ["features", "features"]


def test_thresholds_that_make_no_sense(gallery: FaissIndex) -> None:
    for wrong in (0, -1, 1.5):
        with pytest.raises(FineSightError, match="threshold"):
            find_duplicates(gallery, wrong)
