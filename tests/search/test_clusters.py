"""Clusters of an index, sheets of them, and labels that a person fills in."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.clusters import clusters as clusters_command
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.search.base import NewItems
from finesight.search.clusters import ITERATIONS, cluster, default_count, first_centers, kmeans, sample_vectors
from finesight.search.contact import SheetRow, write_sheets
from finesight.search.faiss_index import FaissIndex
from indexes import SPACES, batch, empty_index, filled_index, item, meta, units
from reference.lloyd import closeness, lloyd, purity
from serving import drawn

app = typer.Typer()
app.command()(clusters_command)


def run(*args: str | Path) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def groups(count: int, each: int, spread: float = 0.05, dimension: int = 24) -> tuple[np.ndarray, list[int]]:
    """Unit vectors close around ``count`` directions, mixed. -> vectors, which direction"""
    random = np.random.default_rng(0)
    centers = np.linalg.qr(random.standard_normal((dimension, dimension)))[0][:count]
    owner = random.permutation(np.repeat(np.arange(count), each))
    vectors = centers[owner] + spread * random.standard_normal((len(owner), dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), owner.tolist()


def same_partition(one: list[int], two: list[int]) -> bool:
    return len(set(zip(one, two, strict=True))) == len(set(one)) == len(set(two))


# --- methods ----------------------------------------------------------------------------------------------------------


def test_kmeans_is_lloyds_from_the_same_start() -> None:
    points = units(300, clusters=12)
    start = first_centers(points, 8, np.random.default_rng(0))
    found = kmeans(points, start)
    reference = lloyd(points.astype(np.float64), start, ITERATIONS)
    assert closeness(points, found) >= closeness(points, reference) - 1e-5
    assert closeness(points, found) > closeness(points, start) + 0.01
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_groups_that_lie_apart_are_found(tmp_path: Path, method: str) -> None:
    vectors, owner = groups(7, 30)
    index = filled_index(tmp_path / "index", vectors)
    found = cluster(index, method, 7 if method == "kmeans" else None, space=SPACES[0])
    labels = dict(zip(found.ids.tolist(), found.labels.tolist(), strict=True))
    mine = [labels[n] for n in range(1, len(owner) + 1)]
    clustered = [n for n, label in enumerate(mine) if label >= 0]
    assert len(clustered) >= 0.95 * len(owner)
    assert same_partition([mine[n] for n in clustered], [owner[n] for n in clustered])
    assert len(found) == len(found.sizes) == 7
    assert sum(found.sizes) + found.unclustered == len(owner)
    assert found.sizes == sorted(found.sizes, reverse=True)


def test_members_come_nearest_first(tmp_path: Path) -> None:
    vectors = units(400, clusters=5)
    found = cluster(filled_index(tmp_path / "index", vectors), "kmeans", 9)
    seen = []
    for number in range(len(found)):
        members = found.members(number)
        cosines = vectors[members - 1] @ found.centers[number]
        assert (np.diff(cosines) <= 1e-6).all()
        assert (cosines >= (vectors[members - 1] @ found.centers.T).max(1) - 1e-6).all()  # each is at its nearest
        np.testing.assert_allclose(found.distances[found.positions(number)], 1 - cosines, atol=1e-6)
        seen += members.tolist()
    assert sorted(seen) == list(range(1, 401))


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_the_same_every_time(tmp_path: Path, method: str) -> None:
    index = filled_index(tmp_path / "index", units(500, clusters=20))
    one, two = (cluster(index, method) for _ in range(2))
    assert np.array_equal(one.labels, two.labels)
    assert np.array_equal(one.centers, two.centers)
    if method == "kmeans":
        assert len(one) == default_count(500) == 16
        assert not np.array_equal(cluster(index, method, seed=1).labels, one.labels)


def test_a_sample_is_enough(tmp_path: Path) -> None:
    """Of a large index only some images are learned from; all are assigned, but HDBSCAN leaves out noise."""
    vectors, owner = groups(5, 120)
    noise = units(60, seed=5)
    index = filled_index(tmp_path / "index", np.concatenate([vectors, noise]))
    assert sample_vectors(index, SPACES[0], 200, np.random.default_rng(0)).shape == (200, 24)
    for method in ("kmeans", "hdbscan"):
        count, sample = (5, 200) if method == "kmeans" else (None, 250)
        found = cluster(index, method, count, sample=sample)
        labels = dict(zip(found.ids.tolist(), found.labels.tolist(), strict=True))
        mine = [labels[n] for n in range(1, 601)]
        kept = [n for n, label in enumerate(mine) if label >= 0]
        assert len(kept) >= 0.85 * 600
        if method == "hdbscan":
            assert same_partition([mine[n] for n in kept], [owner[n] for n in kept])
            assert sum(labels[n] == -1 for n in range(601, 661)) >= 50
        else:
            assert purity(mine, [str(name) for name in owner]) > 0.75
            assert found.unclustered == 0


def test_few_images_and_copies(tmp_path: Path) -> None:
    one = filled_index(tmp_path / "one", units(1))
    for method in ("kmeans", "hdbscan"):
        found = cluster(one, method)
        assert len(found.ids) == 1
        assert found.unclustered == (method == "hdbscan")
    copies = filled_index(tmp_path / "copies", np.repeat(units(2), 20, axis=0))
    found = cluster(copies, "kmeans", 12)
    assert same_partition(found.labels.tolist(), [0] * 20 + [1] * 20)
    assert found.distances.max() < 1e-6
    assert len(cluster(filled_index(tmp_path / "few", units(5)), "kmeans", 500)) == 5


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    index = empty_index(tmp_path / "index")
    with pytest.raises(FineSightError, match="empty"):
        cluster(index)
    with pytest.raises(FineSightError, match="by itself"):
        cluster(index, "hdbscan", 4)
    with pytest.raises(FineSightError, match="no way to cluster 'dbscan'"):
        cluster(index, "dbscan")
    with pytest.raises(FineSightError, match="0 clusters"):
        cluster(index, "kmeans", 0)


# --- sheets and labels ------------------------------------------------------------------------------------------------


@pytest.fixture
def gallery(tmp_path: Path) -> FaissIndex:
    """Thirty pictures, whose vectors are in three groups."""
    names = [os.fsdecode(b"b\xe9 0.png"), "a, b.png"] + [f"sub/{n:02d}.png" for n in range(28)]
    (tmp_path / "images" / "sub").mkdir(parents=True)
    for number, name in enumerate(names):
        (tmp_path / "images" / name).write_bytes(drawn(size=(40, 30 + number), seed=number))
    vectors, _ = groups(3, 10)
    encoder = tmp_path / "no-encoder"
    encoder.mkdir()
    index = FaissIndex.create(tmp_path / "index", meta(tmp_path / "images"), encoder)
    index.add(NewItems([item(n + 1, name) for n, name in enumerate(names)], dict.fromkeys(SPACES, vectors)))
    index.finish()
    return index


def test_from_clusters_to_labels(tmp_path: Path, gallery: FaissIndex) -> None:
    """Clusters, a table with three names filled in, and a list that --data reads."""
    (tmp_path / "images" / "sub" / "03.png").unlink()  # a hole in a sheet, no more
    summary = json.loads(run(gallery.folder, "-o", tmp_path / "out", "--count", "3", "--json", "--quiet"))
    assert [one["size"] for one in summary["clusters"]] == [10, 10, 10]
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["clusters-01.png", "clusters.csv", "clusters.html"]
    with Image.open(tmp_path / "out" / "clusters-01.png") as sheet:
        assert sheet.size[0] > 1000
        assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 1000
    page = (tmp_path / "out" / "clusters.html").read_text()
    assert page.count("<img ") == 3
    assert "http" not in page.replace("http-equiv", "")  # all is inside
    table = tmp_path / "out" / "clusters.csv"
    with open(table, newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 30
    assert list(rows[0]) == ["cluster", "label", "distance", "path"]
    assert [row["cluster"] for row in rows] == ["0"] * 10 + ["1"] * 10 + ["2"] * 10
    assert all(np.diff([float(row["distance"]) for row in rows[:10]]) >= 0)
    rows[0]["label"], rows[3]["label"] = "wren", "-"
    rows[15]["label"] = "sparrow"
    rows[20]["label"], rows[21]["label"] = "tit", "finch"
    with open(table, "w", newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
        writer = csv.DictWriter(stream, list(reversed(rows[0])), delimiter=";")  # as a spreadsheet may
        writer.writeheader()
        writer.writerows(rows)
    told = json.loads(run(gallery.folder, "--apply", table, "-o", tmp_path / "labeled.csv", "--json"))
    assert (told["images"], told["unlabelled"], told["unclear"]) == (9 + 10 + 2, 1 + 8, ["2"])
    assert told["labels"] == ["finch", "sparrow", "tit", "wren"]
    (tmp_path / "images" / "sub" / "03.png").write_bytes(drawn(seed=3))
    source = open_source(tmp_path / "labeled.csv")
    assert len(source) == 21
    expected = {os.path.join(tmp_path / "images", row["path"]): row["label"] for row in (rows[20], rows[21])}
    expected |= {os.path.join(tmp_path / "images", row["path"]): "sparrow" for row in rows[10:20]}
    wrens = [row for n, row in enumerate(rows[:10]) if n != 3]
    expected |= {os.path.join(tmp_path / "images", row["path"]): "wren" for row in wrens}
    names = [source.classes[label] for label in source.labels.tolist()]
    assert dict(zip([str(source.file(n)) for n in range(21)], names, strict=True)) == expected


def test_tables_that_say_nothing(tmp_path: Path, gallery: FaissIndex) -> None:
    run(gallery.folder, "-o", tmp_path / "out", "--method", "hdbscan", "--quiet")
    out = tmp_path / "labeled.csv"
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    cases = [
        (("--apply", tmp_path / "out" / "clusters.csv", "-o", out), "no label that fits"),
        (("--apply", tmp_path / "other.csv", "-o", out), "no table of clusters"),
        (("--apply", tmp_path / "none.csv", "-o", out), "cannot be read"),
        (("--apply", tmp_path / "out" / "clusters.csv"), "Where to"),
        (("--method", "hdbscan", "--count", "3"), "by itself"),
        (("--by", "gem"), "cannot be searched by"),
        (("-o", tmp_path / "other.csv"), "cannot be made"),
    ]
    for words, message in cases:
        with pytest.raises(FineSightError, match=message):
            run(gallery.folder, *words)
    assert not out.exists()


def test_a_page_of_many_groups_stays_small(tmp_path: Path) -> None:
    rows = [SheetRow(f"cluster {n}: 0 images", []) for n in range(40 + 30)]
    files = write_sheets(tmp_path, "sheet", "Sheet", "Words.", str(tmp_path), rows, pages=2, page_groups=40)
    assert [file.name for file in files] == ["sheet.html", "sheet-01.png", "sheet-02.png"]
    page = files[0].read_text()
    assert page.count("<img ") == 40
    assert "30 smaller groups are not on this page" in page


class Growing(FaissIndex):
    """Gets two more images after all were read once."""

    reads = 0

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from super().blocks(space, rows)
        self.reads += 1
        if self.reads == 1:
            self.add(batch([900, 901], units(2, seed=9)))


def test_an_index_that_grows_meanwhile(tmp_path: Path) -> None:
    """Images that come while it is clustered are in no cluster; none is lost."""
    filled_index(tmp_path / "index", groups(3, 20)[0]).close()
    found = cluster(Growing(tmp_path / "index"), "hdbscan")
    assert len(found.ids) == 62
    assert found.labels[np.isin(found.ids, [900, 901])].tolist() == [-1, -1]
