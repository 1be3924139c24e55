"""docs/ablations.md: its tables are those of the raw results beside it, and every figure is there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from finesight.paper.ablations import ABLATIONS
from finesight.paper.bench_command import ablation_table
from finesight.paper.markdown import markdown_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ablations.md"


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_page_shows_the_raw_results(name: str) -> None:
    folder, text = ROOT / "results" / "ablations" / name, PAGE.read_text(encoding="utf-8")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["ablation"] == name
    assert markdown_table(ablation_table(results)) in text
    assert f"    {results['command']}\n" in text
    assert f"](img/ablation-{name}.png)" in text
    assert (ROOT / "docs" / "img" / f"ablation-{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ABLATIONS)
def test_table_and_json_hold_the_same_rows(name: str) -> None:
    folder = ROOT / "results" / "ablations" / name
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    assert listed == [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
