"""The run folder: the same everywhere, resumed by default, never mixed with another run's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.lock import Busy, acquire
from finesight.training.config import TrainConfig, build_config, flat, read_yaml, write_yaml

CONTENTS = (
    "metrics.csv",
    "tensorboard",
    "checkpoints",
    "encoder",
    "encoder-best",
    "study.safetensors",
    "skipped.csv",
    "report.html",
    "evaluation.json",
    "evaluation-classes.csv",
    "probe",
    "config.yaml",  # last: while it is there, what is left of the others is a run's
)
BEGINNINGS = (".lock", ".config.yaml.")  # what a run killed at once leaves: these, or names that begin so


class RunFolder:
    """Paths of a run and the rules for entering it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.csv"
        self.checkpoints = root / "checkpoints"
        self.encoder = root / "encoder"
        self.best_encoder = root / "encoder-best"
        self.study = root / "study.safetensors"
        self.skipped = root / "skipped.csv"
        self.report = root / "report.html"
        self.evaluation = root / "evaluation.json"
        self.classes = root / "evaluation-classes.csv"

    def enter(self, config: TrainConfig, *, restart: bool) -> None:
        """Make the locked folder ready: new, continued, or begun anew with ``restart``.

        Raises FineSightError if it holds a run with another configuration and ``restart`` is off.
        """
        begun = (self.metrics_file, self.checkpoints, self.encoder, self.best_encoder)  # else there is nothing to lose
        if any(path.exists() for path in begun) and not restart:
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
        return build_config(read_yaml(self.config_file), warn=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made if need be.

        Raises FineSightError if another process trains in it, or if it holds something that is not a run.
        """
        self._refuse_foreign()
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

    def _refuse_foreign(self) -> None:
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
