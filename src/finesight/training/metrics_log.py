"""metrics.csv, TensorBoard events and other loggers, continued without gaps or repeats when a run is resumed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers import Logger
from torch.utils.tensorboard import SummaryWriter

from finesight.io.atomic import atomic_path

STEP = "step"


class MetricsLog:
    """One row a logged step; rows at or after ``start`` are dropped when a run continues from there."""

    def __init__(
        self, file: Path, names: Sequence[str], events: Path | None, start: int, loggers: Sequence[Logger] = ()
    ) -> None:
        """Write to ``file``, as TensorBoard events if their folder is given, and to other loggers."""
        self.names = [STEP, "epoch", *names]
        kept = [row for row in read_metrics(file) if int(row[STEP]) < start]
        with atomic_path(file) as scratch, scratch.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self.names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
        self._stream = file.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._stream, self.names)
        self._events = None if events is None else SummaryWriter(str(events), purge_step=start)
        self._loggers = loggers

    def write(self, step: int, epoch: float, values: dict[str, float]) -> None:
        self._writer.writerow({STEP: step, "epoch": f"{epoch:.4f}", **{k: repr(v) for k, v in values.items()}})
        self._stream.flush()
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)
        for logger in self._loggers:
            logger.log_metrics({"epoch": epoch, **values}, step)

    def close(self, status: str = "success") -> None:
        """Close all; ``status`` is what other loggers are told: success or failed."""
        self._stream.close()
        if self._events is not None:
            self._events.close()
        for logger in self._loggers:
            logger.save()
            logger.finalize(status)


def read_metrics(file: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv without a last line that a crash cut short."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values() and row[STEP].isdigit()]


def metric_series(file: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the points (step, value) of each metric, for curves."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in read_metrics(file):
        for name, value in row.items():
            if name not in (STEP, "epoch") and value:
                series.setdefault(name, []).append((float(row[STEP]), float(value)))
    return series
