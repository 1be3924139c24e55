"""The wheels of both distributions: what is in them, what they ask for, and that their code is of every Python."""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from finesight.version import __version__
from wheels import ROOT, build_wheel

NAMES = ("finesight", "finesight-onnx")
PAGE = ROOT / "src" / "finesight" / "server" / "page"
LEFT_OUT = {
    *("torch", "timm", "lightning", "safetensors", "matplotlib", "tensorboard", "pyarrow", "onnx"),
    "opencv-python-headless",
}
PROMISED = {"milvus", "onnx", "export", "ray", "s3", "peft", "lora", "bench", "docs"}


@pytest.fixture(scope="module", params=NAMES)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(request.param, tmp_path_factory.mktemp("dist"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        file = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(file))


def test_everything_that_is_needed_is_inside_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    own = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    tree = ROOT / "src"
    files = {file.relative_to(tree).as_posix() for file in (tree / "finesight").rglob("*") if file.is_file()}
    assert own == {name for name in files if "__pycache__" not in name}
    assert {f"finesight/server/page/{file.name}" for file in PAGE.iterdir()} <= own
    assert {"finesight/py.typed", "finesight/paper/paper_results.json", "finesight/server/page/index.html"} <= own
    assert not [name for name in names if "test" in name.rpartition("/")[2] or name.endswith((".pyc", ".onnx"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_what_it_says_about_itself(wheel: Path) -> None:
    about = metadata_of(wheel)
    assert about["Name"] in NAMES
    assert about["Version"] == __version__
    assert about["Requires-Python"] == ">=3.11"
    classifiers = about.get_all("Classifier", [])
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    for system in ("MacOS", "POSIX :: Linux"):
        assert f"Operating System :: {system}" in classifiers
    with zipfile.ZipFile(wheel) as archive:
        file = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "finesight = finesight.cli.main:main" in archive.read(file).decode()


def requirements(project: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    split = (text.partition(">=") for text in table["dependencies"])
    return {name: bound for name, _, bound in split}, table["optional-dependencies"]


def test_the_light_one_asks_for_the_same_without_what_trains() -> None:
    whole, extras = requirements(ROOT)
    light, light_extras = requirements(ROOT / "packaging" / "finesight-onnx")
    assert light == {name: bound for name, bound in whole.items() if name not in LEFT_OUT}
    assert whole.keys() >= LEFT_OUT
    assert extras.keys() >= PROMISED
    for name, packages in light_extras.items():
        if name != "parquet":
            assert packages == extras[name]
    assert light_extras["parquet"] == [f"pyarrow>={whole['pyarrow']}"]


def test_the_page_about_installing_names_every_extra_and_no_other() -> None:
    text = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    named = [(name, "✓" in row[3]) for row in rows for name in re.findall(r"`([^`]+)`", row[1])]
    (_, whole), (_, light) = requirements(ROOT), requirements(ROOT / "packaging" / "finesight-onnx")
    assert sorted(name for name, _ in named) == sorted(whole.keys() | light.keys())
    assert {name for name, also in named if also} == light.keys()


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_sources_are_of_the_oldest_python_too(version: tuple[int, int]) -> None:
    for file in (ROOT / "src").rglob("*.py"):
        ast.parse(file.read_text(), str(file), feature_version=version)


def test_the_command_says_its_version() -> None:
    done = subprocess.run([sys.executable, "-m", "finesight", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"finesight {__version__}\n"
