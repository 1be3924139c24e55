"""The notebooks run from an empty folder, and what is stored with them is what they show."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = ["first-search", "explain-a-match", "compare-two-runs", "add-your-own-method"]
LARGEST = 400_000  # bytes


def shown(book: Any) -> list[list[tuple[str, int]]]:
    """Return, for each cell, the kinds of its outputs and how many pictures each has."""
    cells = []
    for cell in book.cells:
        outputs = [out for out in cell.get("outputs", []) if out.output_type == "execute_result"]
        cells.append([(out.output_type, out.data.get("text/html", "").count("<img")) for out in outputs])
    return cells


@pytest.fixture(scope="module")
def execute() -> Any:
    spec = importlib.util.spec_from_file_location("execute_notebooks", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.execute


def test_every_notebook_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_is_stored(name: str, execute: Any, tmp_path: Path) -> None:
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    made = execute(FOLDER / f"{name}.ipynb", tmp_path)
    assert [cell.source for cell in made.cells] == [cell.source for cell in stored.cells]
    assert shown(made) == shown(stored), "run `python notebooks/execute.py`"
    assert sum(pictures for cell in shown(made) for _, pictures in cell) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_small_and_tells_nothing_of_the_machine(name: str) -> None:
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text)
    assert '"output_type": "error"' not in text
