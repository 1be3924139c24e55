"""The run folder: the same everywhere, resumed by default, never mixed with another run's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finesight.data.views import ViewConfig
from finesight.errors import FineSightError
from finesight.io.atomic import remove_scratch
from finesight.io.lock import Busy, acquire
from finesight.training.config import TrainConfig, build_config
from finesight.training.config_file import read_yaml, write_yaml
from finesight.training.dotted_keys import dotted, flat
from finesight.training.renamed import current_settings

CONTENTS = (
    "metrics.csv",
    "tensorboard",
    "wandb",
    "mlruns",
    "loggers.json",
    "checkpoints",
    "encoder",
    "encoder-best",
    "encoder-trained",
    ".goes-on",
    "verdict.json",
    "judgments.json",
    "study.safetensors",
    "skipped.csv",
    "progress.json",
    "images.npz",
    "report.html",
    "evaluation.json",
    "evaluation-classes.csv",
    "probe",
    "plan.json",
    "config.yaml",  # last: while it is there, what is left of the others is a run's
)
# What a run killed at once leaves, and what `finesight up` has made before it trains: these, or names that begin so.
BEGINNINGS = (".lock", ".config.yaml.", "frozen", "training.log")


# What runs of earlier versions, which do not say it, were made with; a new run has the network's own.
EARLIER = {
    f"views.{name}": ViewConfig.model_fields[name].default for name in ("interpolation", "crop_pct", "crop_mode")
}


class RunFolder:
    """Paths of a run and the rules for entering it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "config.yaml"
        self.plan = root / "plan.json"  # why the settings are as they are
        self.metrics_file = root / "metrics.csv"
        self.checkpoints = root / "checkpoints"
        self.encoder = root / "encoder"
        self.goes_on = root / ".goes-on"  # there while a finished run is trained further: the encoder is the former one
        self.best_encoder = root / "encoder-best"
        self.trained_encoder = root / "encoder-trained"  # where the frozen one is kept as the encoder
        self.verdict = root / "verdict.json"
        self.study = root / "study.safetensors"
        self.skipped = root / "skipped.csv"
        self.progress = root / "progress.json"
        self.images = root / "images.npz"  # those that the run began with
        self.loggers = root / "loggers.json"  # which runs of other services are this one
        self.report = root / "report.html"
        self.evaluation = root / "evaluation.json"
        self.classes = root / "evaluation-classes.csv"

    @property
    def has_begun(self) -> bool:
        """Whether there is something to lose."""
        return any(path.exists() for path in (self.metrics_file, self.checkpoints, self.encoder, self.best_encoder))

    @property
    def is_finished(self) -> bool:
        """Whether it was trained to its end."""
        return (self.encoder / "encoder.json").exists() and not self.goes_on.exists()

    def enter(self, config: TrainConfig, *, restart: bool) -> None:
        """Make the locked folder ready: new, continued, or begun anew with ``restart``.

        Raises FineSightError if it holds a run with another configuration and ``restart`` is off.
        """
        remove_scratch(self.root, CONTENTS)
        for left in self.checkpoints.glob(".*"):  # by killed processes, also of earlier versions
            left.unlink(missing_ok=True)
        if self.has_begun and not restart:
            self._require_same(config)
            return
        for name in CONTENTS:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        write_yaml(config, self.config_file)

    def config(self) -> TrainConfig:
        if not self.config_file.exists():
            raise FineSightError(f"{self.root} is not a run: it has no config.yaml.")
        return build_config(self.settings(), warn=False)

    def settings(self) -> dict[str, Any]:
        """Return what ``config.yaml`` holds, with dots, under the names and with the defaults of this version."""
        stored = current_settings(dotted(read_yaml(self.config_file)))[0]
        return {**EARLIER, **stored}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made if need be.

        Raises FineSightError if another process trains in it, or if it holds something that is not a run.
        """
        self.refuse_foreign()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = acquire(self.root / ".lock")
        except Busy:
            raise FineSightError(
                f"Another process is training in {self.root}: wait for it or use another --out."
            ) from None
        except OSError as error:
            raise FineSightError(f"--out {self.root} cannot be written to: {error}") from error
        with handle:
            yield

    def refuse_foreign(self) -> None:
        """Raise FineSightError if the folder holds files of another program."""
        if self.root.exists() and not self.root.is_dir():
            raise FineSightError(f"{self.root} is a file: --out must be a folder.")
        names = {path.name for path in self.root.iterdir()} if self.root.exists() else set()
        if not all(name.startswith(BEGINNINGS) for name in names) and not self._is_run():
            raise FineSightError(f"{self.root} is not empty and holds no run: give --out a new folder.")

    def _is_run(self) -> bool:
        """Return whether its config.yaml is one of ours: other programs have files of that name too."""
        try:
            return {"data", "method", "objective"} <= read_yaml(self.config_file).keys()
        except FineSightError:
            return False

    def _require_same(self, config: TrainConfig) -> None:
        old, new = flat(self.config()), flat(config)
        changed = [k for k in {**old, **new} if old.get(k) != new.get(k)]
        if changed:
            lines = "\n".join(f"  {key}: {old.get(key)} there, {new.get(key)} now" for key in changed)
            raise FineSightError(
                f"{self.root} holds a run with another configuration:\n{lines}\n"
                "Give another --out, the same options to continue it, or --restart to begin anew."
            )
