"""``--logger``: the numbers of metrics.csv wherever they are sent, and one run of the service for one run of ours."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import TINY, Command, Finished, command, environment, refused, rows, succeeded, trained

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


@pytest.mark.slow
def test_wandb_offline_keeps_the_numbers_and_the_settings(birds: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    out = tmp_path / "run"
    args = ("--data", birds, "--logger", "wandb", *TINY)
    succeeded(
        command("train", "--out", out, *args, "--epochs", "1", WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
    )
    began = json.loads((out / "loggers.json").read_text())["wandb"]
    logged, settings = offline(out, began)
    assert logged == pytest.approx(expected(out), rel=1e-6)
    assert settings["method"] == "lcr"
    assert len(logged) == 5


def offline(run: Path, name: str) -> tuple[dict[int, float], dict[str, object]]:
    """The losses and the settings in the files that wandb would send."""
    from wandb.proto.wandb_internal_pb2 import Record

    losses: dict[int, float] = {}
    settings: dict[str, object] = {}
    for file in sorted(run.glob(f"wandb/offline-run-*/run-{name}.wandb")):
        for record in map(Record.FromString, records(file)):
            settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            settings |= {item.key: json.loads(item.value_json) for item in record.config.update}
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "loss" in row:
                losses[row["trainer/global_step"]] = row["loss"]
    return losses, settings


def records(file: Path) -> Iterator[bytes]:
    """What is in a file of LevelDB's log format: blocks of 32 kB with pieces of records; 7 bytes come before them."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)  # after a check sum
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record in one piece, or its last piece
            yield whole
            whole = b""
        if (left := -at % 32768) < 7:
            at += left


def test_a_missing_package_is_a_sentence(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = "import sys; sys.modules['mlflow'] = None; from finesight.cli.main import main; main()"
    words = ["train", "--data", birds, "--out", out, "--logger", "mlflow", *SHORT]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )
    refused(Finished(done.returncode, done.stdout, done.stderr), "pip install mlflow-skinny")
    assert not out.exists()
