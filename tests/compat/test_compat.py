"""Files written by version 0.1 before the modules were reorganized still work: run, checkpoint, encoder, index, cache.

``v0.1`` holds one small file of each, made with that version's command line on the drawn birds below (a ConvNeXt of
0.27 M parameters at 32 px). Paths in them are placeholders that the tests replace.
"""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from processes import command

pytestmark = pytest.mark.slow

SAVED = Path(__file__).parent / "v0.1"
CACHED_IMAGES = Path("/tmp/finesight-compat/images")  # part of the keys of the saved cache
SIZES, CHANGED = (3991, 3826, 3683, 3903), 1_700_000_000  # bytes and time of the images when they were cached
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # another processor rounds differently


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compat") / "data"
    sizes = ("--species", "3", "--train-per-species", "6", "--test-per-species", "3", "--size", "40")
    assert command("lookalikes", folder, *sizes).code == 0
    return folder


def restored(name: str, folder: Path, data: Path) -> Path:
    """Copy a saved run, with the paths of this machine in it."""
    run = folder / name
    shutil.copytree(SAVED / name, run)
    for file in (run / "config.yaml", run / "index" / "index.json"):
        if file.exists():
            file.write_text(file.read_text().replace("DATA", str(data)).replace("RUN", str(run)))
    if (run / "index").exists():
        shutil.copytree(run / "encoder", run / "index" / "encoder")
    return run


def table(file: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return the first column and the other columns as numbers."""
    with file.open(newline="") as stream:
        _, *rows = csv.reader(stream)
    return [row[0] for row in rows], np.array([[float(value or "nan") for value in row[1:]] for row in rows])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("run-dino", ("--method", "dino", "--set", "objective.prototypes=16", "--set", "views.local_crops=0",
                      "--set", "objective.bottleneck=8")),
        ("run-simsiam", ("--method", "simsiam", "--set", "focus.source=energy", "--set", "focus.every=1",
                         "--set", "views.grey=0.1", "--set", "objective.bottleneck=4", "--set", "objective.dim=12")),
    ],
)  # fmt: skip
def test_a_checkpoint_is_continued_with_the_options_of_that_version(
    name: str, options: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    run = restored(name, tmp_path, data)
    expected = table(run / "metrics.csv")
    done = command(
        *(
            "train",
            "--data",
            data,
            "--out",
            run,
            "--backbone",
            "test_convnext",
            "--weights",
            "random",
            "--resolution",
            "32",
        ),
        *("--output-stride", "16", "--epochs", "4", "--batch", "6", "--quiet", "--log-every", "1", "--rationale"),
        *("--set", "validation.fraction=0", "--set", "objective.hidden=16", *options),
    )
    assert done.code == 0, done.err
    steps, values = table(run / "metrics.csv")
    assert steps == expected[0]
    np.testing.assert_allclose(values, expected[1], **CLOSE)  # the last row was computed by this version


def test_an_encoder_gives_the_same_features(data: Path, tmp_path: Path) -> None:
    run = restored("run-simsiam", tmp_path, data)
    done = command("embed", run, data, "-o", tmp_path / "features.csv", "--quiet")
    assert done.code == 0, done.err
    paths, features = table(tmp_path / "features.csv")
    expected_paths, expected = table(SAVED / "features.csv")
    assert paths == expected_paths
    np.testing.assert_allclose(features, expected, **CLOSE)


def test_an_index_is_searched_and_brought_up_to_date(data: Path, tmp_path: Path) -> None:
    run = restored("run-simsiam", tmp_path, data)
    query = data / "test" / "species-000" / "0000.png"
    done = command("search", run, query, "-k", "1")
    assert done.code == 0, done.err
    assert "test/species-000/0000.png" in done.out
    assert command("index", run, data, "--json", "--quiet").code == 0


def test_a_cache_is_read_and_not_decoded_again(data: Path, tmp_path: Path) -> None:
    """The files have the size and time of the cached images but hold no image: only the cache can give features."""
    shutil.rmtree(CACHED_IMAGES.parent, ignore_errors=True)
    CACHED_IMAGES.mkdir(parents=True)
    try:
        for number, size in enumerate(SIZES, 1):
            file = CACHED_IMAGES / f"{number}.png"
            file.write_bytes(b"\0" * size)
            os.utime(file, (CHANGED, CHANGED))
        shutil.copytree(SAVED / "cache", tmp_path / "cache")
        run = restored("run-simsiam", tmp_path, data)
        options = ("-o", tmp_path / "cached.csv", "--cache-dir", tmp_path / "cache", "--quiet")
        done = command("embed", run, CACHED_IMAGES, *options)
    finally:
        shutil.rmtree(CACHED_IMAGES.parent)
    assert done.code == 0, done.err
    np.testing.assert_allclose(table(tmp_path / "cached.csv")[1], table(SAVED / "cached.csv")[1], **CLOSE)
