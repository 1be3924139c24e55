"""A bench of seconds: drawn birds in the official layout of CUB-200-2011, and a network of a few thousand weights."""

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
from finesight.paper import engine, profiles
from finesight.paper.profiles import Profile
from finesight.paper.results import ResultFiles
from finesight.training.config import RuntimeConfig
from processes import TIMEOUT, Command, _empty_file, _run_cli, environment, start_server

NAME = "cpu-50"  # a real profile's, so that the command line finds the results
PART = "back"
MIXED = {"rationale.encoder_gradient": 0.05}  # MoCo v2 needs a training of its own
APART = {"rationale.encoder_gradient": 0.0}  # LCR's serves both
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
    return Profile(name=NAME, words="tiny", settings=settings, rationale=rationale, seeds=seeds)


def bench(data: Path, folder: Path, setting: Profile | None = None, weights: str = "random") -> engine.Bench:
    """Every step is logged and saved."""
    runtime = RuntimeConfig(cache_dir=folder / "cache", progress=False, log_every=1, checkpoint_minutes=0)
    results = ResultFiles(folder / "results" / NAME)
    return engine.Bench(setting or profile(), data, weights, folder / "runs", results, runtime)


def run(job: engine.Bench, systems: Sequence[str] = (), seeds: Sequence[int] | None = None) -> None:
    engine.run(job, engine.plan(job, systems, seeds))


class Running:
    """``run`` in a process of its own, to be killed."""

    def __init__(self, job: engine.Bench, systems: Sequence[str], seeds: Sequence[int]) -> None:
        start_server()
        context = multiprocessing.get_context("forkserver")
        self.process = context.Process(target=_run, args=(job, list(systems), list(seeds), environment()), daemon=True)
        self.process.start()

    def kill_when(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert self.process.is_alive(), "ended too early"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.002)
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        assert self.code() == -signal.SIGKILL

    def code(self) -> int | None:
        self.process.join(TIMEOUT)
        return self.process.exitcode


def _run(job: engine.Bench, systems: list[str], seeds: list[int], env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    run(job, systems, seeds)


class TinyCommand(Command):
    """``finesight ARGS`` with another profile behind its name."""

    def __init__(self, setting: Profile, *args: str | Path) -> None:
        self._out, self._err = (_empty_file() for _ in range(2))
        words = (setting, [str(arg) for arg in args], self._out, self._err, environment())
        start_server()
        self.process = multiprocessing.get_context("forkserver").Process(target=_run_tiny, args=words, daemon=True)
        self.process.start()


def _run_tiny(setting: Profile, args: list[str], out: str, err: str, env: dict[str, str]) -> None:
    profiles.PROFILES[setting.name] = setting
    _run_cli(args, out, err, env)


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
