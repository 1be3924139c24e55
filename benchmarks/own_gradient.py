"""How far GradCAM's gradient of the summed loss is from that of each image's own loss, on real images.

    python benchmarks/own_gradient.py --data CUB_200_2011 --weights RESNET50 -o results/gradient/own.json

Batches of 16 train images, at 128 px, through the objective as it begins: pretrained backbone, fresh heads. The number
is ‖g_summed − g_own‖ / ‖g_own‖ at the pooled vectors, g_own with the statistics of the heads' batch norms held.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.nn.norm import held_statistics
from finesight.paper.machine import provenance
from finesight.training.batches import Batch, step_generator
from finesight.training.config import build_config
from finesight.training.module import TrainingModule

CASES: dict[str, dict[str, Any]] = {
    "MoCo v2, 2 layers": {"method": "moco-v2", "objective.projector": "2-layer"},
    "MoCo v2, 3 layers, BN": {"method": "moco-v2", "objective.projector": "3-layer-bn"},
    "BYOL": {"method": "byol"},
    "SimSiam": {"method": "simsiam"},
    "DINO": {"method": "dino", "objective.prototypes": 4096},
}
COMMON: dict[str, Any] = {
    "views.resolution": 128,
    "epochs": 2,
    "rationale.variant": "finesight",
    "rationale.gradient": "own",
    "backbone.freeze": 3,
    "backbone.frozen_norm": True,
}


def differences(
    name: str, data: str, weights: str, batch_size: int, batches: int, cache_dir: Path | None
) -> list[float]:
    """Return the number of each batch."""
    given = {**COMMON, **CASES[name], "data": data, "backbone.weights": weights, "batch_size": batch_size}
    config = build_config(given)
    source = open_source(data).split("train")
    some = np.sort(np.random.default_rng(0).permutation(len(source))[: batches * batch_size])
    cache = open_cache(source.select(some), cache_side(128), cache_dir=cache_dir, progress=False)
    module = TrainingModule(config, images=len(source), steps_per_epoch=len(source) // batch_size)
    order, found = np.random.default_rng(1).permutation(len(cache)), []
    for step in range(batches):
        canvas, sizes = cache.batch(order[step * batch_size : (step + 1) * batch_size])
        batch, generator = Batch(step, canvas, sizes, slice(0, batch_size)), step_generator(0, step)
        views = module.hook.views(batch, module.kinds[: module.objective.views], generator, module.objective)
        output = module.objective(views, generator, None)
        (summed,) = torch.autograd.grad(output.loss.sum(), output.pooled, retain_graph=True)
        with held_statistics():
            (own,) = torch.autograd.grad(output.loss.sum(), output.pooled)
        found.append(float((summed - own).norm() / own.norm()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for name in CASES:
        for size in options.batch_size:
            found = differences(name, options.data, options.weights, size, options.batches, options.cache_dir)
            rows.append({"objective": name, "batch_size": size, "relative_difference": [round(v, 4) for v in found]})
            print(f"{name:24} batch {size:3}: {np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})", flush=True)
    facts = {"data": Path(options.data).name, "weights": Path(options.weights).name, "resolution": 128, "seed": 0}
    content = {**facts, "rows": rows, "date": time.strftime("%Y-%m-%d"), **provenance()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
