"""How time and memory grow with the number of images: each step of the work at 1, 4, 16 and 64 times the data.

    python benchmarks/growth.py -o results/speed/growth.json --plot docs/img/growth.png
    python benchmarks/growth.py --quick                       # does it run
    python benchmarks/growth.py --show results/speed/growth.json --plot docs/img/growth.png

Small images of noise in class folders, and a tiny network, so that what does not grow with the network shows. Every
step runs in a process of its own; seconds are those of the processor, memory is the peak minus what was in use before
the step. The exponent is the slope between the last two sizes on a log-log plot: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import matplotlib

matplotlib.use("agg")

import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray
from PIL import Image

from finesight.api import frozen, train
from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.sources import open_source
from finesight.evaluation.linear import linear_probe
from finesight.evaluation.retrieval import retrieval
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import Meter, record_measurement, system_fact
from finesight.search.build import open_or_create, update_index
from finesight.training.config import RuntimeConfig

FACTORS = (1, 4, 16, 64)
SIDE, CLASSES, RESOLUTION = 48, 20, 32
BACKBONE = BackboneConfig(name="test_resnet", weights="random", output_stride=8)
SETTINGS: dict[str, Any] = {
    "method": "lcr",
    "epochs": 1,
    "batch_size": 64,
    "objective.queue": 512,
    "backbone": BACKBONE.model_dump(),
    "views.resolution": RESOLUTION,
}
Job = Callable[[], object]


def draw(folder: Path, count: int) -> None:
    random = np.random.default_rng(count)
    for label in range(CLASSES):
        (folder / f"class-{label:02d}").mkdir(parents=True)
    for i in range(count):
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"class-{i % CLASSES:02d}" / f"{i:07d}.jpg", quality=80)


# --- the steps: each prepares what it needs and returns what is measured ----------------------------------------------


def open_images(folder: Path, work: Path) -> DecodedCache:
    return open_cache(open_source(folder), cache_side(RESOLUTION), cache_dir=work, progress=False)


def untrained() -> Encoder:
    return frozen(BACKBONE, RESOLUTION)


def random_features(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = open_source(folder).labels
    assert labels is not None
    return np.random.default_rng(0).normal(size=(len(labels), 64)).astype(np.float32), labels


def list_files(folder: Path, work: Path) -> Job:
    return lambda: open_source(folder)


def decode(folder: Path, work: Path) -> Job:
    return lambda: open_images(folder, work)


def train_epoch(folder: Path, work: Path) -> Job:
    open_images(folder, work)
    runtime = RuntimeConfig(cache_dir=work, progress=False)
    return lambda: train(folder, work / "run", runtime=runtime, preset="paper", **SETTINGS)


def embed(folder: Path, work: Path) -> Job:
    cache, encoder = open_images(folder, work), untrained()
    return lambda: extract(encoder, cache, np.arange(len(cache)), ("average",), progress=False)


def index(folder: Path, work: Path) -> Job:
    untrained().save(work / "encoder")
    embedder = TorchEmbedder.load(work / "encoder")
    return lambda: update_index(
        open_or_create(work / "index", embedder, work / "encoder", folder), embedder, folder, workers=1
    )


def fit_probe(folder: Path, work: Path) -> Job:
    x, y = random_features(folder)
    return lambda: linear_probe(x[::2], y[::2], x[1::2], y[1::2])


def score_retrieval(folder: Path, work: Path) -> Job:
    x, y = random_features(folder)
    return lambda: retrieval(x, y)


STEPS = {
    "listing": list_files,
    "decoding into the cache": decode,
    "an epoch of training": train_epoch,
    "embedding": embed,
    "indexing": index,
    "linear probe": fit_probe,
    "retrieval scores": score_retrieval,
}


def run_step(name: str, folder: Path, work: Path) -> dict[str, float]:
    """Measure one step in this process."""
    torch.set_num_threads(1)
    job = STEPS[name](folder, work)
    Meter()  # forgets the peak so far
    before, began, clock = memory("VmRSS"), time.process_time(), time.perf_counter()
    job()
    seconds, wall = time.process_time() - began, time.perf_counter() - clock
    return {"seconds": round(seconds, 3), "wall": round(wall, 3), "mb": round(memory("VmHWM") - before, 1)}


def run_apart(name: str, folder: Path, work: Path) -> dict[str, float]:
    """Measure one step in a process of its own, so that it has its own peak of memory."""
    command = [sys.executable, __file__, "--step", name, "--folder", str(folder), "--work", str(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory(name: str) -> float:
    return float(system_fact("self/status", name).split()[0]) / 1024


def measure(
    base: int, factors: tuple[int, ...], run: Callable[[str, Path, Path], dict[str, float]]
) -> list[dict[str, Any]]:
    rows = []
    for factor in factors:
        with tempfile.TemporaryDirectory() as scratch:
            folder, work = Path(scratch, "photos"), Path(scratch, "work")
            work.mkdir()
            draw(folder, base * factor)
            for name in STEPS:
                rows.append({"step": name, "images": base * factor, **run(name, folder, work)})
                print(rows[-1], flush=True)
    return rows


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the slope of time between the two largest sizes."""
    found = {}
    for name in STEPS:
        sizes = sorted((row for row in rows if row["step"] == name), key=lambda row: row["images"])
        if len(sizes) < 2:
            continue
        a, b = sizes[-2:]
        found[name] = round(math.log(b["seconds"] / a["seconds"]) / math.log(b["images"] / a["images"]), 2)
    return found


def plot(result: dict[str, Any], file: Path) -> None:
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    sizes = np.array(sorted({row["images"] for row in result["rows"]}))
    for panel, key, words in ((panels[0], "seconds", "processor seconds"), (panels[1], "mb", "MB above the start")):
        for name in STEPS:
            rows = [row for row in result["rows"] if row["step"] == name]
            panel.plot([row["images"] for row in rows], [max(row[key], 0.01) for row in rows], marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel="images", ylabel=words)
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
    panels[0].plot(sizes, sizes / sizes[0] * 0.05, color="gray", linestyle=":", label="linear")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size, of few images, in one process")
    parser.add_argument("--base", type=int, default=500, help="images at factor 1")
    parser.add_argument("--show", type=Path, help="measure nothing: use this result")
    parser.add_argument("--plot", type=Path, help="where the plot goes")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(run_step(options.step, options.folder, options.work)))
        return
    if options.show:
        result = json.loads(options.show.read_text())
    else:
        rows = measure(100, FACTORS[:1], run_step) if options.quick else measure(options.base, FACTORS, run_apart)
        result = {"threads": 1, "rows": rows, "exponent": exponents(rows)}
        print(record_measurement(result, options.out))
    if options.plot:
        plot(result, options.plot)


if __name__ == "__main__":
    main()
