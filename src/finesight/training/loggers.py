"""Lightning's loggers beside metrics.csv: the same numbers in TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic
from finesight.training.config import TrainConfig
from finesight.training.dotted_keys import flat
from finesight.training.run_folder import RunFolder

LoggerName = Literal["tensorboard", "csv", "wandb", "mlflow"]
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # that a logger needs beside what FineSight comes with
PROJECT = "finesight"


def require_loggers(names: Sequence[str]) -> None:
    """Raise ``FineSightError`` if the package of a logger is not installed."""
    for name in names:
        if name in PACKAGES and find_spec(name) is None:
            raise FineSightError(
                f"--logger {name} needs a package: pip install {PACKAGES[name]} (or finesight[loggers])."
            )


def open_loggers(names: Sequence[str], run: RunFolder, config: TrainConfig) -> list[Logger]:
    """Return the loggers that write outside the run's own files; a run that goes on gets those it had.

    Settings are logged as hyperparameters once. ``loggers.json`` keeps which run of each service is this one.
    """
    require_loggers(names)
    known = _read(run.loggers)
    loggers: list[Logger] = []
    for name in dict.fromkeys(names):
        if name not in PACKAGES:
            continue  # metrics.csv and TensorBoard events are the run's own
        logger = _wandb(run.root, known) if name == "wandb" else _mlflow(run.root, known)
        if name not in known:
            logger.log_hyperparams(_settings(config))
            known[name] = str(logger.version)
            write_atomic(run.loggers, json.dumps(known, indent=1) + "\n")
        loggers.append(logger)
    return loggers


def _wandb(root: Path, known: dict[str, str]) -> Any:
    from lightning.pytorch.loggers import WandbLogger

    class FinishedWandbLogger(WandbLogger):
        """Lightning's leaves the run open until the process ends, which in a notebook is late."""

        def finalize(self, status: str) -> None:
            super().finalize(status)
            self.experiment.finish(exit_code=0 if status == "success" else 1)

    number = known.get("wandb") or uuid.uuid4().hex[:8]
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return FinishedWandbLogger(name=root.absolute().name, project=project, save_dir=root, id=number, resume="allow")


def _mlflow(root: Path, known: dict[str, str]) -> Any:
    from lightning.pytorch.loggers import MLFlowLogger

    where = os.environ.get("MLFLOW_TRACKING_URI") or (root.absolute() / "mlruns").as_uri()
    if where.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for it
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    return MLFlowLogger(experiment, root.absolute().name, tracking_uri=where, run_id=known.get("mlflow"))


def _settings(config: TrainConfig) -> dict[str, Any]:
    return {name: value for name, value in flat(config).items() if value is not None}


def _read(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text())
        return {str(name): str(value) for name, value in content.items()}
    except (OSError, ValueError, AttributeError):
        return {}
