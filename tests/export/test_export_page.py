"""What docs/export.md tells others to run, runs, and gives the encoder's feature."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finesight
from networks import ExportedRun

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def test_the_snippet(
    exported: ExportedRun, lcr: Path, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    picture = sorted(birds.glob("test/*/*.png"))[0]
    shutil.copy(exported.file, tmp_path / "model.onnx")
    shutil.copy(picture, tmp_path / "bird.jpg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    wanted = finesight.load(lcr).embed(picture).numpy()
    assert names["feature"].shape == wanted.shape
    np.testing.assert_allclose(names["feature"], wanted / np.linalg.norm(wanted), atol=1e-5)
