"""metrics.csv and TensorBoard events of a run that went on after a crash: no gap, no step twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finesight.training.metrics_log import MetricsLog, metric_series, read_metrics

THIRD = 0.1 + 0.2  # needs all its 17 digits


def write(folder: Path, start: int, stop: int, offset: float = 0.0) -> None:
    log = MetricsLog(folder / "metrics.csv", ["loss", "val_rank1"], folder / "tensorboard", start)
    for step in range(start, stop):
        validation = {"val_rank1": 50.0 + step} if step % 4 == 3 else {}
        log.write(step, (step + 1) / 4, {"loss": THIRD * step + offset, **validation})
    log.close()


def test_rows_from_the_continued_step_on_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    write(tmp_path, 6, 12, offset=100)
    found = read_metrics(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in found] == list(range(12))
    for row in found:
        step = int(row["step"])
        assert float(row["loss"]) == THIRD * step + (100 if step >= 6 else 0), "to the last bit"
        assert row["epoch"] == f"{(step + 1) / 4:.4f}"
        assert row["val_rank1"] == (repr(50.0 + step) if step % 4 == 3 else "")
    assert not list(tmp_path.glob(".*")), "no scratch file is left"


def test_a_last_line_cut_anywhere_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    write(tmp_path, 0, 3)
    whole = file.read_bytes()
    last = whole.rstrip().rfind(b"\n") + 1
    for length in range(last, len(whole) - len(",\r\n")):
        file.write_bytes(whole[:length])
        assert [row["step"] for row in read_metrics(file)] == ["0", "1"], whole[last:length]
    file.write_bytes(whole[: last + 3])
    write(tmp_path, 2, 4)
    assert [row["step"] for row in read_metrics(file)] == ["0", "1", "2", "3"]


def test_series_for_curves(tmp_path: Path) -> None:
    assert metric_series(tmp_path / "metrics.csv") == {}
    write(tmp_path, 0, 8)
    series = metric_series(tmp_path / "metrics.csv")
    assert series["loss"] == [(float(step), THIRD * step) for step in range(8)]
    assert series["val_rank1"] == [(3.0, 53.0), (7.0, 57.0)]


def test_tensorboard_has_the_same(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    time.sleep(1.1)  # files are read in the order of their names, which have the second and a counter without zeros
    write(tmp_path, 6, 12, offset=100)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = {event.step: event.value for event in events.Scalars("loss")}
    assert [event.step for event in events.Scalars("loss")] == list(range(12))
    for row in read_metrics(tmp_path / "metrics.csv"):
        assert points[int(row["step"])] == pytest.approx(float(row["loss"]), rel=1e-6)
