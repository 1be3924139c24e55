"""Tables by class and super-category: against retrieval done class by class."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from finesight.data.sources import ImageSource, open_source
from finesight.evaluation.per_class import as_csv, class_rows, query_labels, super_categories, super_rows
from finesight.evaluation.retrieval import retrieval
from reference.retrieval import ranking, retrieval_scores

NAMES = ("Birds/finch", "Birds/wren", "Fungi/morel", "Birds/jay", "Fungi/truffle", "Plants/fern")


def species(kind: str = "inat2019") -> ImageSource:
    return ImageSource(Path("/nowhere"), kind, np.array(["x.jpg"]), np.array([0]), NAMES)


@pytest.fixture
def searched() -> tuple[np.ndarray, np.ndarray]:
    """Labeled, unlabeled and lone images in a mixed order; integers, so that the reference is exact."""
    rng = np.random.default_rng(3)
    labels = rng.permutation(np.array([0] * 5 + [1] * 4 + [2] * 6 + [3] * 3 + [4] * 4 + [5] + [-1] * 4))
    features = rng.integers(-50, 50, (len(labels), 8)) + 40 * np.eye(8)[labels]
    return features.round(), labels


def test_classes_have_their_own_queries(searched: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = searched
    queries = retrieval(features.astype(np.float32), labels)
    tested = np.array([5, 0, -1, 0, 2])
    hits = {"linear": {"100": {"top1": np.array([True, False, True, True])}}}
    rows = class_rows(species(), labels, queries, tested, hits)
    assert [row["rank1"] for row in rows if row["rank1"] is not None] == sorted(
        row["rank1"] for row in rows if row["rank1"] is not None
    )
    assert {row["class"] for row in rows} == set(NAMES)
    gallery = [i for i, label in enumerate(labels) if label >= 0]
    for row in rows:
        label = NAMES.index(row["class"])
        assert row["super-category"] == row["class"].split("/")[0]
        first = []
        for query in [i for i in gallery if labels[i] == label]:
            order = ranking(features, query, gallery)
            if any(labels[i] == label for i in order):
                first.append(labels[order[0]] == label)
        assert row["queries"] == len(first)
        assert row["rank1"] == (pytest.approx(100 * np.mean(first)) if first else None)
    by_name = {row["class"]: row for row in rows}
    assert (by_name["Birds/finch"]["test_images"], by_name["Birds/finch"]["linear_100"]) == (2, 50.0)
    assert (by_name["Plants/fern"]["queries"], by_name["Plants/fern"]["linear_100"]) == (0, 100.0)
    assert by_name["Birds/jay"]["linear_100"] is None
    assert rows[-1]["class"] == "Plants/fern", "without a query a class is not the worst"
    total = sum(row["queries"] * row["rank1"] for row in rows if row["queries"])
    assert total / queries.queries == pytest.approx(queries.score("rank1"))


def test_super_categories_in_the_whole_and_in_their_own_gallery(searched: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = searched
    small = features.astype(np.float32)
    queries = retrieval(small, labels)
    rows = super_rows(species(), small, labels, queries)
    assert rows is not None
    assert [row["super-category"] for row in rows] == ["Birds", "Fungi"], "the lone fern is no query"
    asked = query_labels(labels)
    for row, classes in zip(rows, ((0, 1, 3), (2, 4)), strict=True):
        mine = np.isin(asked, classes)
        assert (row["classes"], row["queries"]) == (len(classes), mine.sum())
        assert row["rank1"] == pytest.approx(100 * queries.per_query["rank1"][mine].mean())
        own = [int(label) if label in classes else -1 for label in labels]
        want = retrieval_scores(features, own)
        assert row["rank1_own"] == pytest.approx(100 * np.mean(want["hit1"]))
        assert row["mAP_own"] == pytest.approx(100 * np.mean(want["ap"]))
        assert row["rank1_own"] >= row["rank1"], "fewer images to mistake"


def test_one_class_alone_has_no_gallery_of_its_own() -> None:
    features = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    labels = np.array([0, 0, 2, 2, 4, 4, 5, 5])
    rows = super_rows(species(), features, labels, retrieval(features, labels))
    assert rows is not None
    own = {row["super-category"]: row["rank1_own"] for row in rows}
    assert own["Birds"] is None
    assert own["Plants"] is None
    assert own["Fungi"] is not None


def test_other_datasets_have_none(searched: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = searched
    for kind in ("cub", "aircraft", "class folders"):
        assert super_categories(species(kind)) is None
        assert super_rows(species(kind), features, labels, retrieval(features.astype(np.float32), labels)) is None


def test_csv_has_two_decimals_and_holes() -> None:
    text = as_csv([{"class": "a,b", "queries": 3, "rank1": 100 / 3}, {"class": "c", "queries": 0, "rank1": None}])
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [["class", "queries", "rank1"], ["a,b", "3", "33.33"], ["c", "0", ""]]


def test_cifar_by_its_coarse_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the binary files to the table: three fine classes in two coarse ones."""
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    (root / "fine_label_names.txt").write_text("trout\nshark\nrose\n")
    (root / "coarse_label_names.txt").write_text("fish\nflowers\n")
    rng = np.random.default_rng(0)
    coarse = (0, 0, 1)
    for name, each in (("train.bin", 1), ("test.bin", 3)):
        records = [bytes([coarse[fine], fine]) + rng.bytes(3072) for fine in range(3) for _ in range(each)]
        (root / name).write_bytes(b"".join(records))
    source = open_source(root)
    assert source.kind == "cifar100"
    assert super_categories(source) == ("fish", "fish", "flowers")
    test = source.split("test")
    assert test.labels is not None
    features = np.eye(9, dtype=np.float32)
    rows = super_rows(test, features, test.labels, retrieval(features, test.labels))
    assert rows is not None
    assert [(row["super-category"], row["classes"], row["queries"]) for row in rows] == [
        ("fish", 2, 6),
        ("flowers", 1, 3),
    ]
