"""``NAME:PATH``: which texts are names of datasets, and what becomes of the path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finesight.data.named_path import absolute_named_path, short_named_path, split_named_path
from finesight.data.sources import open_source
from layouts import open_error


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("cub:data/CUB", ("cub", "data/CUB")),
        ("CUB:/data/CUB", ("cub", "/data/CUB")),
        ("inat2019:a:b", ("inat2019", "a:b")),
        ("lookalikes:~/birds", ("lookalikes", "~/birds")),
        (Path("cars:/data/cars"), ("cars", "/data/cars")),
        ("data/CUB", (None, "data/CUB")),
        (r"C:\data\cub", (None, r"C:\data\cub")),
        ("C:/data", (None, "C:/data")),
        ("https://example.org/cub", (None, "https://example.org/cub")),
        ("./cub:x", (None, "./cub:x")),
        ("photos:of nothing near", (None, "photos:of nothing near")),
        ("", (None, "")),
    ],
)
def test_names_and_paths(data: str | Path, expected: tuple[str | None, str]) -> None:
    assert split_named_path(data) == expected


def test_what_exists_is_a_path(tmp_path: Path, picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    picture("cub:birds/a.jpg")
    (tmp_path / "cup:list.txt").write_text("cub:birds/a.jpg\n")
    monkeypatch.chdir(tmp_path)
    assert open_source("cub:birds").kind == "folder"
    assert open_source("cup:list.txt").file(0).is_file()
    assert absolute_named_path("cub:birds") == str(tmp_path / "cub:birds")


def test_a_mistyped_name(tmp_path: Path) -> None:
    assert open_error("cifar10:x").startswith("There is no dataset 'cifar10'. Nearest: cifar100")
    assert open_error("aircrafts:x").startswith("There is no dataset 'aircrafts'. Nearest: aircraft")
    assert open_error(f"dogs:{tmp_path}").startswith("There is no dataset 'dogs'. Nearest: ")  # what follows exists
    assert open_error("dogs:nowhere").endswith("give --data a folder of images or a list of image paths")
    assert open_error("cub:") == "cub: names no folder; write cub:PATH"


def test_the_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_named_path("cub:CUB") == f"cub:{tmp_path}/CUB"
    assert absolute_named_path("CUB") == f"{tmp_path}/CUB"
    assert absolute_named_path("cub:~/CUB") == f"cub:{Path.home()}/CUB"
    assert short_named_path("cub:a/CUB") == "cub:CUB"
    assert short_named_path("a/CUB") == "CUB"
