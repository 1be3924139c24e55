"""Features as files for other programs: every readable image once, in a stable order, with its path."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import finesight
from close import same_rows
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.wide import WideRows
from finesight.features.writing import check_output, embed_images, write_features
from processes import command, refused, succeeded

FORMATS = ("npz", "parquet", "csv")


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


def read(file: Path) -> tuple[list[str], np.ndarray]:
    """As other programs would."""
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as data:
            return data["paths"].tolist(), data["features"]
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        return table["path"].to_pylist(), np.array(table["feature"].to_pylist(), dtype=np.float32)
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["path", *(f"f{i}" for i in range(len(header) - 1))]
    return [line[0] for line in lines], np.array([line[1:] for line in lines], dtype=np.float32)


def test_three_formats_hold_the_same(lcr: Path, encoder: Encoder, unlabeled: Path, tmp_path: Path) -> None:
    expected = [f"image-{number:02d}.png" for number in range(24)]
    features = encoder.embed([unlabeled / name for name in expected]).numpy()
    for suffix in FORMATS:
        out = tmp_path / f"features.{suffix}"
        if suffix == "npz":
            done = succeeded(command("embed", lcr, unlabeled, "-o", out, "--workers", "2", "--quiet"))
            assert done.out == ""
            assert "24 features in" in done.err
            assert "2 files were skipped" in done.err
        else:
            assert embed_images(encoder, unlabeled, out, progress=False) == (24, 2)
        paths, values = read(out)
        assert paths == expected
        assert values.dtype == np.float32
        assert np.array_equal(values, features), f"{suffix} lost digits"
    skipped = (tmp_path / "features.skipped.csv").read_text().splitlines()
    assert skipped[0] == "path,reason"
    assert sorted(line.split(",")[0] for line in skipped[1:]) == ["broken.png", "notes.txt"]
    assert not list(tmp_path.glob(".*")), "no scratch file is left"


def test_nested_folders_keep_their_paths(encoder: Encoder, class_folders: Path, tmp_path: Path) -> None:
    written, skipped = embed_images(encoder, class_folders, tmp_path / "f.npz", pooling="gem", progress=False)
    assert (written, skipped) == (48, 0)
    paths, values = read(tmp_path / "f.npz")
    assert paths == sorted(p.relative_to(class_folders).as_posix() for p in class_folders.rglob("*.png"))
    assert same_rows(values[17][None], encoder.embed(class_folders / paths[17], "gem"))
    assert not (tmp_path / "f.skipped.csv").exists(), "nothing was skipped"


def test_a_list_keeps_its_order(encoder: Encoder, class_folders: Path, tmp_path: Path) -> None:
    chosen = sorted(class_folders.rglob("*.png"))[::-7]
    (tmp_path / "list.txt").write_text("\n".join(map(str, chosen)))
    embed_images(encoder, tmp_path / "list.txt", tmp_path / "f.csv", progress=False)
    paths, values = read(tmp_path / "f.csv")
    assert paths == [str(file) for file in chosen]
    assert same_rows(values, encoder.embed(chosen))


@pytest.mark.parametrize("suffix", FORMATS)
def test_odd_names(encoder: Encoder, birds: Path, tmp_path: Path, suffix: str) -> None:
    """Commas, quotes, other scripts, and names that are not UTF-8 at all."""
    folder = tmp_path / "odd"
    folder.mkdir()
    names = ['a, "b".png', "Übervogel 鳥.png", "new\nline.png", os.fsdecode(b"latin-\xe9.png")]
    for name in names:
        shutil.copy(next(birds.glob("test/*/*.png")), folder / name)
    embed_images(encoder, folder, tmp_path / f"f.{suffix}", progress=False)
    paths, values = read(tmp_path / f"f.{suffix}")
    if suffix == "parquet":  # its text is UTF-8 by definition
        names[-1] = "latin-\\xe9.png"
    assert sorted(paths) == sorted(names)
    assert (values == values[0]).all()


def test_numbers_of_any_size_survive_also_below_a_suffix_in_upper_case(tmp_path: Path) -> None:
    values = np.array([[0.1, 1e-38, 3.4e38, -0.0], [1e-45, 1 / 3, 16777217, -1e-7]], dtype=np.float32)
    for suffix in FORMATS:
        write_features(np.array(["a", "b"]), values, tmp_path / f"f.{suffix.upper()}")
        (tmp_path / f"f.{suffix.upper()}").rename(tmp_path / f"f.{suffix}")
        assert np.array_equal(read(tmp_path / f"f.{suffix}")[1], values), suffix


def test_the_output_is_checked_first(lcr: Path, unlabeled: Path, tmp_path: Path) -> None:
    refused(
        command("embed", lcr, unlabeled, "-o", tmp_path / "f.txt"),
        "must end in .npz, .parquet, .arrow, .feather or .csv",
    )
    with pytest.raises(FineSightError, match="does not exist"):
        check_output(tmp_path / "missing" / "f.npz")
    check_output(tmp_path / "F.NPZ")


@pytest.mark.parametrize("suffix", FORMATS)
def test_wide_features_are_written_in_float32_part_by_part(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32) * np.float32(1e6)
    wide = WideRows.empty(7, 50)
    wide[:] = values
    names = np.array([f"{i}.png" for i in range(7)])
    for features in (wide, values):
        write_features(names, features, tmp_path / f"f.{suffix}", block_bytes=4 * 50 * 3)
        paths, got = read(tmp_path / f"f.{suffix}")
        assert paths == names.tolist()
        assert got.dtype == np.float32
        assert np.array_equal(got, np.asarray(features))
    np.testing.assert_allclose(np.asarray(wide), values, rtol=1e-3)
    with pytest.raises(ValueError, match="7 paths but 6"):
        write_features(names, wide[:6], tmp_path / f"f.{suffix}")
    assert np.array_equal(read(tmp_path / f"f.{suffix}")[1], values), "the old file stays"
    assert os.listdir(tmp_path) == [f"f.{suffix}"]


def test_npz_is_what_numpy_writes(tmp_path: Path) -> None:
    values, names = np.arange(6, dtype=np.float32).reshape(3, 2), np.array(["a", "b", "ü"])
    write_features(names, values, tmp_path / "ours.npz")
    np.savez(tmp_path / "theirs.npz", paths=names, features=values)
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "theirs.npz").read_bytes()
