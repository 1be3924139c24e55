"""What ``--checkpoint-activations`` saves and costs: peak memory and time of LCR's training steps.

    python benchmarks/checkpointing.py -o results/backbones/checkpointing.json

Each network is trained for some steps on noise in a process of its own, once as usual and once with checkpointing.
Memory is the peak of the process above what it held before the first step, seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from finesight.paper.machine import record_measurement
from finesight.training.batches import Batch
from finesight.training.config import build_config
from finesight.training.module import TrainingModule

NETWORKS = {"vit_small_patch14_dinov2": 224, "convnext_tiny": 224, "swin_tiny_patch4_window7_224": 224, "resnet50": 224}
BATCH, STEPS = 8, 3


def run(name: str, side: int, checkpointed: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    settings = {"data": "-", "backbone.name": name, "backbone.weights": "random", "views.resolution": side}
    config = build_config({**settings, "batch_size": BATCH, "objective.queue": 64})
    module = TrainingModule(config, images=BATCH * STEPS, steps_per_epoch=STEPS)
    if checkpointed:
        module.checkpoint_activations()
    canvas = torch.randint(0, 256, (BATCH, 3, 256, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    held, seconds = peak(), []
    for step in range(STEPS):
        began = time.process_time()
        batch = Batch(step, canvas, torch.full((BATCH, 2), 256), slice(None), None)
        module.on_train_batch_start(batch, 0)
        loss = module.training_step(batch, 0)
        module.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        module.optimizer.step()
        module.finish_step(batch)
        seconds.append(time.process_time() - began)
    return {"MB": peak() - held, "seconds": statistics.median(seconds), "loss": module.metrics["loss"]}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, side: int) -> dict[str, dict[str, float]]:
    rows = {}
    for kind in ("usual", "checkpointed"):
        words = [sys.executable, __file__, "--child", name, str(side), kind]
        rows[kind] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        print(name, kind, rows[kind], file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.child:
        name, side, kind = options.child
        print(json.dumps(run(name, int(side), kind == "checkpointed")))
    else:
        found = {name: measure(name, side) for name, side in NETWORKS.items()}
        facts = {"command": "python benchmarks/checkpointing.py", "batch": BATCH, "steps": STEPS, "networks": found}
        print(record_measurement(facts, options.out))
