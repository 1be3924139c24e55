"""What the rationale costs: a training step of LCR against one of MoCo v2, interleaved in one process.

    python benchmarks/rationale_cost.py --steps 15 -o results/cost/rationale.json

Both start from the same weights and see the same images. Steps alternate, so that whatever else the machine does hits
both alike; the ratio of the medians is what counts, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from finesight.bench.cost import saved_bytes
from finesight.bench.machine import commit, machine
from finesight.config import build_config
from finesight.data.cache import cache_side
from finesight.training.batches import Batch
from finesight.training.module import TrainingModule


def one_step(module: TrainingModule, batch: Batch) -> float:
    began = time.perf_counter()
    module.on_train_batch_start(batch, 0)
    loss = module.training_step(batch, 0)
    module.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    module.optimizer.step()
    module.finish_step(batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--resolution", type=int, default=160)
    parser.add_argument("--freeze", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings: dict[str, Any] = {
        "data": "-",
        "backbone.weights": "random",
        "backbone.freeze": options.freeze,
        "views.resolution": options.resolution,
        "batch": options.batch,
        "objective.queue": 4096,
    }
    side = cache_side(options.resolution)
    canvas = torch.randint(0, 256, (options.batch, 3, side, side), dtype=torch.uint8)
    sizes = torch.full((options.batch, 2), side)
    modules = {
        method: TrainingModule(build_config({**settings, "method": method}), images=4096, steps_per_epoch=128)
        for method in ("moco-v2", "lcr")
    }
    first = Batch(0, canvas, sizes, slice(None))
    kept = {
        name: saved_bytes(module, lambda module=module: module.training_step(first, 0))[1]
        for name, module in modules.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for step in range(options.steps + 1):
        batch = Batch(step, canvas, sizes, slice(None))
        for name in modules if step % 2 else reversed(modules):
            seconds[name].append(one_step(modules[name], batch))
    seconds = {name: times[1:] for name, times in seconds.items()}  # the first one allocates
    ratios = np.array(seconds["lcr"]) / np.array(seconds["moco-v2"])
    result = {
        "command": f"python benchmarks/rationale_cost.py --steps {options.steps} --batch {options.batch} "
        f"--resolution {options.resolution} --freeze {options.freeze} --threads {options.threads}",
        "time_ratio": float(np.median(seconds["lcr"]) / np.median(seconds["moco-v2"])),
        "time_ratio_paired_median": float(np.median(ratios)),
        "memory_ratio": kept["lcr"] / kept["moco-v2"],
        "seconds": seconds,
        "saved_bytes": kept,
        "machine": machine(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps({key: value for key, value in result.items() if key != "seconds"}, indent=2))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
