"""A benchmark of seconds: drawn birds in the official layout of CUB-200-2011, and a network of few weights."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from finesight.data.sources import open_source
from finesight.paper.benchmark import Benchmark
from finesight.paper.experiment import Plan
from finesight.paper.profiles import Profile
from finesight.paper.selection import select_rows
from finesight.paper.store import ResultStore
from finesight.training.config import RuntimeConfig
from processes import TIMEOUT, TooLate, environment, start_server

NAME = "cpu-50"  # a real profile's, so that the command line finds the results
PART = "back"
MIXED = {"rationale.encoder_gradient": 0.05}  # MoCo v2 needs a training of its own
APART = {"rationale.encoder_gradient": 0.0}  # LCR's serves both
PROBED = ("frozen", "moco-v2", "lcr")  # linear probes are the slow part
SETTINGS = {
    "backbone.name": "test_resnet",
    "backbone.output_stride": 8,
    "views.resolution": 32,
    "batch_size": 8,
    "validation.fraction": 0.0,
}


def profile(epochs: int = 1, seeds: tuple[int, ...] = (0,), **more: Any) -> Profile:
    rationale = more.pop("rationale", MIXED)
    settings = {**SETTINGS, "epochs": epochs, **more}
    return Profile(name=NAME, words="tiny", settings=settings, rationale=rationale, seeds=seeds, probed=PROBED)


def runtime(folder: Path) -> RuntimeConfig:
    """Every step is logged and saved."""
    return RuntimeConfig(cache_dir=folder / "cache", progress=False, log_every=1, checkpoint_minutes=0)


def bench(
    data: Path, folder: Path, setting: Profile | None = None, names: Sequence[str] = (), **options: Any
) -> Benchmark:
    """The rows of ``names`` without reports, which take longer to draw than these trainings."""
    values: dict[str, Any] = {
        "command": "birds",
        "profile": setting or profile(),
        "data": data,
        "weights": "random",
        "runs": folder / "runs",
        "store": ResultStore(folder / "results" / NAME),
        "runtime": runtime(folder),
        "rows": select_rows(names),
        "report": False,
    }
    return Benchmark(**{**values, **options})


def plan(job: Benchmark, seeds: Sequence[int] | None = None) -> Plan:
    return job.missing(job.profile.seeds if seeds is None else seeds)


def run(job: Benchmark, seeds: Sequence[int] | None = None) -> None:
    job.make(plan(job, seeds))


class Running:
    """A function in a process of its own, to be killed or stopped."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        start_server()
        context = multiprocessing.get_context("forkserver")
        self.process = context.Process(target=_call, args=(function, args, environment()), daemon=True)
        self.process.start()

    def send_when(self, number: signal.Signals, condition: Callable[[], bool]) -> int | None:
        """Send a signal as soon as ``condition`` holds; return the exit code, or raise ``TooLate`` if all was done."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            alive = self.process.is_alive()
            if condition():
                break
            assert alive, "ended too early"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.002)
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if self.code() == 0:
            raise TooLate
        return self.code()

    def code(self) -> int | None:
        self.process.join(TIMEOUT)
        return self.process.exitcode


def _call(function: Callable[..., Any], args: tuple[Any, ...], env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    function(*args)


def draw_cub(root: Path, drawn: Path) -> Path:
    """The drawn look-alikes with the annotations of CUB-200-2011; a box is that of the bird's mask."""
    source = open_source(drawn)
    assert source.labels is not None
    assert source.splits is not None
    assert source.masks is not None
    folders = [f"{n:03d}.{name}" for n, name in enumerate(source.classes, start=1)]
    lines: dict[str, list[str]] = {name: [] for name in ("images", "labels", "splits", "boxes", "parts")}
    for i, (label, split) in enumerate(zip(source.labels.tolist(), source.splits.tolist(), strict=True)):
        name = f"{folders[label]}/{split}-{i:04d}.jpg"
        file = root / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(source.file(i)) as image:
            image.convert("RGB").save(file, quality=95)
        x, y, width, height = _box(source.root / str(source.masks[i]))
        lines["images"].append(f"{i + 1} {name}")
        lines["labels"].append(f"{i + 1} {label + 1}")
        lines["splits"].append(f"{i + 1} {int(split == 'train')}")
        lines["boxes"].append(f"{i + 1} {x}.0 {y}.0 {width}.0 {height}.0")
        lines["parts"].append(f"{i + 1} 1 {x + width / 2} {y + height / 2} 1")
    (root / "parts").mkdir()
    for name, text in {
        "images.txt": lines["images"],
        "classes.txt": [f"{n} {folder}" for n, folder in enumerate(folders, start=1)],
        "image_class_labels.txt": lines["labels"],
        "train_test_split.txt": lines["splits"],
        "bounding_boxes.txt": lines["boxes"],
        "parts/parts.txt": [f"1 {PART}"],
        "parts/part_locs.txt": lines["parts"],
    }.items():
        (root / name).write_text("\n".join(text) + "\n")
    return root


def _box(mask: Path) -> tuple[int, int, int, int]:
    with Image.open(mask) as image:
        rows, columns = np.nonzero(np.asarray(image.convert("L")))
    return int(columns.min()), int(rows.min()), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1
