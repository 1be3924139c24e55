"""What a training step of every method costs, relative to MoCo v2: the last two columns of the paper's Table 2.

    python benchmarks/methods.py -o results/cost/methods.json
    python benchmarks/methods.py --quick          # a small network: does it run, roughly how much

All methods start from the same weights and see the same images. Their steps alternate in one process, in another order
every round, so that whatever else the machine does hits all alike: the median of the ratios within a round is what
counts, not the seconds. Without a GPU these are seconds of the processor, which others on the machine do not lengthen.
Peak memory is that of a process of its own that takes two steps (of the GPU if there is one), the least of three such
processes: what the allocator keeps differs by some percent from one to the next, and never takes less than is needed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from finesight.data.cache import cache_side
from finesight.methods.base import METHODS
from finesight.paper.machine import Meter, record_measurement
from finesight.paper.published import paper_results
from finesight.training.batches import Batch
from finesight.training.config import build_config
from finesight.training.module import TrainingModule

BASE = "moco-v2"
CLASSES = 200
PEAKS = 3
TABLE_2 = [
    name for name, entry in METHODS.items() if entry.objective and entry.paper in paper_results()["tab:comp_4SSL"]
]
QUICK = {"backbone.name": "test_resnet", "backbone.output_stride": 8, "views.resolution": 64, "batch_size": 8}
FULL = {"views.resolution": 112, "backbone.output_stride": 16, "backbone.dilate": False, "batch_size": 32}
SMALL_HEADS = {"hidden": 64, "dim": 64, "prototypes": 64, "bottleneck": 16}


def module_of(method: str, quick: bool) -> TrainingModule:
    settings: dict[str, Any] = {"data": "-", "method": method, "backbone.weights": "random"}
    settings |= QUICK if quick else FULL
    if quick:
        known = type(build_config(settings).objective).model_fields
        settings |= {f"objective.{name}": size for name, size in SMALL_HEADS.items() if name in known}
    config = build_config(settings)
    module = TrainingModule(config, images=5994, steps_per_epoch=5994 // config.batch_size, classes=CLASSES)
    return module.to("cuda" if torch.cuda.is_available() else "cpu")


def batch_of(module: TrainingModule, step: int) -> Batch:
    count, side = module.config.batch_size, cache_side(module.config.views.resolution)
    generator = torch.Generator().manual_seed(step)
    canvas = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    batch = Batch(step, canvas, torch.full((count, 2), side), slice(None), labels)
    return module.transfer_batch_to_device(batch, next(module.parameters()).device, 0)


def one_step(module: TrainingModule, step: int) -> float:
    batch = batch_of(module, step)
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    began = clock()
    module.on_train_batch_start(batch, 0)
    loss = module.training_step(batch, 0)
    module.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    module.optimizer.step()
    module.finish_step(batch)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


def times(methods: list[str], quick: bool, rounds: int) -> dict[str, list[float]]:
    """Seconds of each method's step in every round but the first, which allocates."""
    modules = {method: module_of(method, quick) for method in methods}
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for turn in range(rounds + 1):
        for place in np.random.default_rng(turn).permutation(len(methods)):
            method = methods[place]
            seconds[method].append(one_step(modules[method], turn))
    return {method: taken[1:] for method, taken in seconds.items()}


def peak(method: str, quick: bool) -> float:
    """MB, in processes of their own."""
    words = [sys.executable, __file__, "--peak", method, *(["--quick"] if quick else [])]
    words += ["--threads", str(torch.get_num_threads())]
    runs = (subprocess.run(words, check=True, capture_output=True, text=True) for _ in range(1 if quick else PEAKS))
    return min(float(run.stdout) for run in runs)


def peak_here(method: str, quick: bool) -> float:
    meter = Meter()
    module = module_of(method, quick)
    for step in range(2):
        one_step(module, step)
    return meter.usage().peak_memory_mb


def row(method: str, seconds: dict[str, list[float]], memory: dict[str, float]) -> dict[str, Any]:
    ratios = np.array(seconds[method]) / np.array(seconds[BASE])
    said = paper_results()["tab:comp_4SSL"]
    paper, base = (said.get(METHODS[name].paper or "", {}) for name in (method, BASE))

    def beside(key: str) -> float | None:
        return paper[key]["bs32"] / base[key]["bs32"] if key in paper else None

    return {
        "time": float(np.median(ratios)),
        "time_quartiles": [float(q) for q in np.quantile(ratios, (0.25, 0.75))],
        "memory": memory[method] / memory[BASE],
        "memory_mb": memory[method],
        "paper_time": beside("CUB_time_hours"),
        "paper_memory": beside("CUB_peak_GPU_memory_GB"),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| method | time | (quartiles) | peak memory | paper: time | memory |", "|:---|---:|---:|---:|---:|---:|"]
    for method, cells in rows.items():
        low, high = cells["time_quartiles"]
        said = [f"{cells[key]:.2f}" if cells[key] else "" for key in ("paper_time", "paper_memory")]
        lines.append(
            f"| {method} | {cells['time']:.2f} | {low:.2f} to {high:.2f} | {cells['memory']:.2f} | {' | '.join(said)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network")
    parser.add_argument("--methods", default=",".join(TABLE_2))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peak", metavar="METHOD", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak is not None:
        print(peak_here(options.peak, options.quick))
        return
    methods = list(dict.fromkeys([BASE, *options.methods.split(",")]))
    memory = {method: peak(method, options.quick) for method in methods}
    seconds = times(methods, options.quick, options.rounds)
    rows = {method: row(method, seconds, memory) for method in methods}
    print(table(rows))
    flags = [*(["--quick"] if options.quick else []), "--methods", ",".join(methods), "--rounds", str(options.rounds)]
    command = ["python", "benchmarks/methods.py", *flags]
    result = {
        "command": " ".join([*command, "--threads", str(options.threads)]),
        "setting": QUICK if options.quick else FULL,
        "rows": rows,
        "seconds": seconds,
    }
    record_measurement(result, options.out)


if __name__ == "__main__":
    main()
