"""The tables of reliability and load are those of the committed results: nobody types their numbers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from finesight.paper.markdown import update_text

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "script", "command"),
    [
        ("reliability.md", "tests/chaos/figures.py", "PYTHONPATH=tests python -m chaos.figures"),
        ("load.md", "benchmarks/load_tables.py", "python benchmarks/load_tables.py"),
    ],
)
def test_tables_are_those_of_the_results(page: str, script: str, command: str) -> None:
    blocks = runpy.run_path(str(ROOT / script))["blocks"]()
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in blocks:
        assert f"<!-- bench:{name} -->" in text
    assert update_text(text, blocks) == text, f"run `{command}`"
