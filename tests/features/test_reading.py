"""Features from files: read back as written, scored, and indexed; also those that other programs made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import finesight
from close import same_rows
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.writing import embed_images, write_features
from processes import command, refused, succeeded

SUFFIXES = ("parquet", "arrow", "feather", "npz", "csv")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    names = np.array(["a.png", "b/c.png", "d, e.png", "Ü.png", "=f.png"])
    more = {"label": ["x", "", "y", "x", "ü"], "split": ["train", "test", "train", "test", "test"]}
    for columns in ({}, more):
        write_features(names, values, tmp_path / f"f.{suffix}", block_bytes=4 * 7 * 2, more=columns)
        table = finesight.read_features(tmp_path / f"f.{suffix}")
        assert table.paths == names.tolist()
        assert np.array_equal(table.features, values)
        assert (table.labels, table.splits) == (columns.get("label"), columns.get("split"))
    arrow = table.to_arrow()
    assert arrow.column_names == ["path", "feature", "label", "split"]
    assert np.array_equal(np.array(arrow["feature"].to_pylist(), np.float32), values)
    frame = table.to_pandas()
    assert frame["path"].tolist() == table.paths
    assert np.array_equal(np.stack(frame["feature"]), values)


def test_tables_of_other_programs(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float64).reshape(3, 4)
    vectors = pa.array(values.tolist(), pa.list_(pa.float64()))
    pq.write_table(pa.table({"clip": vectors, "label": [3, None, 1]}), tmp_path / "a.parquet")
    table = finesight.read_features(tmp_path / "a.parquet")
    assert (table.paths, table.labels) == (["0", "1", "2"], ["3", "", "1"])
    assert np.array_equal(table.features, values)
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), pa.schema({"embedding": pa.list_(pa.float32(), 4)})) as stream:
        flat = pa.array(values.ravel(), pa.float32())
        stream.write_table(pa.table({"embedding": pa.FixedSizeListArray.from_arrays(flat, 4)}))
    assert np.array_equal(finesight.read_features(tmp_path / "b.arrow").features, values)
    sliced = pa.table({"embedding": vectors}).slice(1, 2)
    pyarrow.feather.write_feather(sliced, tmp_path / "c.feather")
    assert np.array_equal(finesight.read_features(tmp_path / "c.feather").features, values[1:])


def test_files_that_hold_no_features_are_refused(tmp_path: Path) -> None:
    def refuse(table: dict[str, object], words: str) -> None:
        pq.write_table(pa.table(table), tmp_path / "x.parquet")
        with pytest.raises(FineSightError, match=words):
            finesight.read_features(tmp_path / "x.parquet")

    refuse({"path": ["a"]}, "one column of lists of numbers")
    refuse({"u": [[1.0]], "v": [[1.0]]}, "one column of lists of numbers")
    refuse({"feature": [[1.0], [1.0, 2.0]]}, "not equally long: 1 to 2")
    refuse({"feature": [[1.0], None]}, "without a feature")
    refuse({"feature": [[1.0], [float("nan")]]}, "not numbers, the first in row 1")
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    (tmp_path / "x.npz").write_bytes(b"nothing")
    (tmp_path / "x.arrow").write_bytes(b"")
    (tmp_path / "x.csv").write_text("path,f0\na,b\n")
    for name in ("x.parquet", "x.npz", "x.arrow", "x.csv", "gone.parquet", "x.txt"):
        with pytest.raises(FineSightError, match=name):
            finesight.read_features(tmp_path / name)


def test_scores_of_a_file_are_those_of_the_run(lcr: Path, birds: Path, tmp_path: Path) -> None:
    """With labels in the file, and with those of the data: the same numbers as with the images."""
    out = tmp_path / "features.parquet"
    encoder = finesight.load(lcr)
    embed_images(encoder, birds, out, progress=False, labels=True)
    expected = finesight.evaluate(encoder, birds, fractions=(100,), progress=False).scores
    options = ("--fractions", "100", "--json", "--quiet")
    alone = json.loads(succeeded(command("evaluate", "--features", out, *options)).out)
    for family in ("retrieval", "knn", "linear", "ci"):
        assert alone[family] == expected[family], family
    assert (alone["setting"]["train_images"], alone["setting"]["test_images"]) == (48, 24)
    embed_images(encoder, birds, tmp_path / "bare.npz", progress=False)
    beside = ("evaluate", "--features", tmp_path / "bare.npz")
    given = json.loads(succeeded(command(*beside, "--data", birds, "--no-linear", *options)).out)
    assert given["retrieval"] == expected["retrieval"]
    refused(command(*beside), "has no labels, and scores need them")
    refused(command(*beside, lcr), "Give one of these")


def test_an_index_of_a_file_is_searched_by_vectors_and_grouped(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    names = np.array([f"{i:02d}.png" for i in range(30)])
    write_features(names, values, tmp_path / "f.arrow")
    done = succeeded(command("index", "--features", tmp_path / "f.arrow", "--index", tmp_path / "index", "--quiet"))
    assert "30 images (30 added" in done.out
    searcher = finesight.open_index(tmp_path / "index")
    answer = searcher.by_vector(values[7], k=5)
    cosines = values @ values[7] / np.linalg.norm(values, axis=1) / np.linalg.norm(values[7])
    order = np.argsort(-cosines)[:5]
    assert [hit.path for hit in answer.hits] == names[order].tolist()
    assert same_rows(np.array([[hit.score for hit in answer.hits]]), cosines[order][None])
    with pytest.raises(FineSightError, match="by vectors only"):
        searcher.by_picture("x.png")
    frame = answer.to_pandas()
    assert frame["rank"].tolist() == [1, 2, 3, 4, 5]
    assert frame["path"].tolist() == answer.to_arrow()["path"].to_pylist() == names[order].tolist()
    assert frame["score"].is_monotonic_decreasing
    searcher.index.close()
    grouped = json.loads(succeeded(command("clusters", tmp_path / "index", "--count", "3", "--json", "--quiet")).out)
    assert sum(one["size"] for one in grouped["clusters"]) == 30
    refused(command("search", tmp_path / "index", tmp_path / "f.arrow"), "what made them is not known")
    refused(command("index", "--features", tmp_path / "f.arrow", "--index", tmp_path / "index"), "already")
    refused(command("index", "--features", tmp_path / "f.arrow"), "needs --index")
    refused(command("index"), "Give a run and its images")


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
def test_a_table_of_paths_is_a_list_of_images(birds: Path, tmp_path: Path, suffix: str) -> None:
    files = sorted(birds.glob("test/*/*.png"))
    columns = {
        "path": [str(file) for file in files],
        "label": [file.parent.name for file in files],
        "split": ["train", "validation"] * (len(files) // 2),
    }
    write = pq.write_table if suffix == "parquet" else pyarrow.feather.write_feather
    write(pa.table(columns), tmp_path / f"list.{suffix}")
    source = open_source(tmp_path / f"list.{suffix}")
    assert (source.kind, len(source), len(source.classes)) == ("list", len(files), 4)
    assert source.splits is not None
    assert source.splits.tolist() == ["train", "test"] * (len(files) // 2)
    assert source.file(0) == files[0]
    write(pa.table({"path": ["a.png", "b.txt"]}), tmp_path / f"bad.{suffix}")
    with pytest.raises(FineSightError, match=r"1 of 2 rows .*row 1: 'b.txt'"):
        open_source(tmp_path / f"bad.{suffix}")
