"""What docs/interfaces.md tells others to run, runs, example by example in one folder."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "interfaces.md"


@pytest.mark.slow
def test_every_example_runs(lcr: Path, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 6
    shutil.copytree(lcr, tmp_path / "runs" / "birds")
    shutil.copytree(birds, tmp_path / "birds")
    for name, file in zip(("one.jpg", "two.jpg"), sorted(birds.glob("test/*/*.png")), strict=False):
        shutil.copy(file, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    left = set(os.listdir(tmp_path))
    assert {"state.pt", "for-the-hub", "features.parquet", "birds-index"} <= left
