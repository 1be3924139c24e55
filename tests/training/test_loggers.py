"""``--logger``: the numbers of metrics.csv wherever they are sent, and one run of the service for one run of ours."""

from __future__ import annotations

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from processes import TINY, Command, command, refused, rows, trained

SHORT = ("--epochs", "2", *TINY)


def expected(run: Path, name: str = "loss") -> dict[int, float]:
    return {int(row["step"]): float(row[name]) for row in rows(run) if row[name]}


def test_csv_alone_leaves_no_events_and_tensorboard_is_the_default(birds: Path, tmp_path: Path) -> None:
    trained(tmp_path / "csv", "--data", birds, "--logger", "csv", *SHORT)
    assert len(rows(tmp_path / "csv")) == 10
    assert not (tmp_path / "csv" / "tensorboard").exists()
    assert "logger" not in (tmp_path / "csv" / "config.yaml").read_text()
    refused(command("train", "--data", birds, "--out", tmp_path / "x", "--logger", "paper", *SHORT), "--logger")


@pytest.mark.slow
def test_mlflow_continues_its_run(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # to read the files here; MLflow 3 asks for it
    out = tmp_path / "run"
    args = ("--data", birds, "--logger", "mlflow", "--logger", "tensorboard", "--checkpoint-minutes", "0", *SHORT)
    running = Command("train", "--out", out, *args)
    running.until(lambda: len(rows(out)) >= 2)
    running.send(signal.SIGINT)
    running.wait()
    began = json.loads((out / "loggers.json").read_text())["mlflow"]
    trained(out, *args)
    assert json.loads((out / "loggers.json").read_text())["mlflow"] == began
    client = mlflow.MlflowClient((out / "mlruns").as_uri())
    history = {point.step: point.value for point in client.get_metric_history(began, "loss")}
    assert history == pytest.approx(expected(out), rel=1e-6)
    facts = client.get_run(began)
    assert facts.data.params["method"] == "lcr"
    assert facts.info.status == "FINISHED"
    assert (out / "tensorboard").is_dir()


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_a_missing_package_is_a_sentence(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    refused(command("train", "--data", birds, "--out", out, "--logger", "mlflow", *SHORT), "pip install mlflow-skinny")
    assert not out.exists()
