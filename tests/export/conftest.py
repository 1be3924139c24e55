"""One exported run for all of them: tracing a network takes longer than anything that is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from finesight.export.onnx import Exported, export_onnx


@pytest.fixture(scope="session")
def exported(lcr: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The LCR run with its projections' responses. Not to be written to."""
    return export_onnx(lcr, tmp_path_factory.mktemp("onnx") / "model.onnx", responses=True, progress=False)
