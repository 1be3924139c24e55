"""One exported run for all of them: tracing a network takes longer than anything that is asked of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from finesight.cli.export import export
from networks import ExportedRun

cli = typer.Typer()
cli.command()(export)


@pytest.fixture(scope="session")
def exported(lcr: Path, birds: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    """The LCR run."""
    folder = tmp_path_factory.mktemp("onnx")
    options = ["--responses", "--int8", "--calibrate", birds, "--calibration-images", "12", "--json", "--quiet"]
    done = CliRunner().invoke(cli, [str(part) for part in (lcr, folder / "model.onnx", *options)])
    assert done.exit_code == 0, done.exception
    return ExportedRun(folder, json.loads(done.stdout))
