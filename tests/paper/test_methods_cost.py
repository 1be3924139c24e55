"""benchmarks/methods.py: it runs, and the table beside it shows the committed numbers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from finesight.methods.base import METHODS
from finesight.paper.published import paper_results

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE, NUMBERS = (
    ROOT / "benchmarks/methods.py",
    ROOT / "benchmarks/README.md",
    ROOT / "results/cost/methods.json",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("methods_cost", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_quick_measures_every_method_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "new" / "cost.json"
    words = ["--quick", "--methods", "lcr,dino", "--rounds", "2", "--threads", "1", "-o", str(out)]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found["rows"]) == ["moco-v2", "lcr", "dino"]
    assert found["rows"]["moco-v2"]["time"] == found["rows"]["moco-v2"]["memory"] == 1
    assert {len(taken) for taken in found["seconds"].values()} == {2}
    assert all(row["time"] > 0 and row["memory"] > 0.5 for row in found["rows"].values())
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]] == ["moco-v2", "lcr", "dino"]


def test_the_ratio_is_the_median_over_rounds(script: ModuleType) -> None:
    seconds = {"moco-v2": [1.0, 2.0, 4.0], "lcr": [1.5, 2.0, 40.0]}
    row = script.row("lcr", seconds, {"moco-v2": 100.0, "lcr": 103.0})
    assert row["time"] == 1.5
    assert row["time_quartiles"] == [1.25, 5.75]
    assert row["memory"] == 1.03


def test_the_page_shows_the_committed_numbers(script: ModuleType) -> None:
    found = json.loads(NUMBERS.read_text())
    text = PAGE.read_text()
    assert script.table(found["rows"]) in text
    assert found["command"] in text.replace(" \\\n    ", " ")
    for method, row in found["rows"].items():
        memory = {name: other["memory_mb"] for name, other in found["rows"].items()}
        assert row == script.row(method, found["seconds"], memory), method


def test_every_row_of_the_papers_table_2_is_measured() -> None:
    measured = {METHODS[method].paper for method in json.loads(NUMBERS.read_text())["rows"]}
    assert measured == set(paper_results()["tab:comp_4SSL"])


def test_the_rationale_costs_next_to_nothing() -> None:
    row = json.loads(NUMBERS.read_text())["rows"]["lcr"]
    assert row["time"] < 1.03
    assert row["memory"] < 1.03
