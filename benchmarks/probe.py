"""How long the linear probes and kNN of `finesight evaluate` take on features at hand, beside what else one could do.

    python benchmarks/probe.py --quick
    python benchmarks/probe.py --rounds 3 -o results/speed/probe.json
    python benchmarks/probe.py --features features.npz    # train_x, train_y, test_x, test_y

Features are as many and as wide as CUB's with a ResNet-50, and drawn unless given: times do not depend on them.

- finesight: 100, 50 and 20 % of the labels, each with its choice among 7 rates and 2 lengths on up to 5 folds.
- before: the same by plain steps on all dimensions, for all rates at once, as until commit 44fa48f. Estimated: some
  steps are timed, and multiplied by how many images all steps see.
- logistic_regression: scikit-learn, one fit to all labels with one setting. Nothing is chosen.
- forward: one hundred passes of all train images through the network at 224 px, for one probe with one setting.
  Estimated from a batch.

In every round each of them runs once, in turns. With one thread, seconds are those of the processor, else of the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from finesight.api import frozen
from finesight.evaluation.fractions import draw_parts
from finesight.evaluation.knn import knn_places
from finesight.evaluation.linear import EPOCHS, FINALISTS, LEARNING_RATES, linear_probe, validation_folds
from finesight.evaluation.softmax import BATCH
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement

Data = dict[str, np.ndarray]
STEPS = 8  # of the old way that are timed
FORWARD = 8  # images through the network that are timed


def draw_features(train: int, test: int, classes: int, width: int) -> Data:
    """Return features of classes that overlap, not negative and with a falling spectrum, as a network's are."""
    rng = np.random.default_rng(0)
    scale = np.arange(1, width + 1) ** -0.5
    mix = np.linalg.qr(rng.standard_normal((width, width)))[0] * scale[:, None]
    centers = rng.standard_normal((classes, width))
    data = {}
    for part, count in (("train", train), ("test", test)):
        labels = np.sort(np.arange(count) % classes)
        points = (centers[labels] + 3 * rng.standard_normal((count, width))) @ mix
        data[f"{part}_x"] = np.maximum(points + 0.05, 0).astype(np.float32)
        data[f"{part}_y"] = labels
    return data


def old_steps(data: Data, count: int) -> Callable[[], None]:
    """Return so many steps of all rates as they were: on rows with a one at the end, on all dimensions."""
    classes, lrs = int(data["train_y"].max()) + 1, LEARNING_RATES
    x = torch.from_numpy(data["train_x"])
    x, y = torch.cat([x / x.norm(dim=1, keepdim=True), torch.ones(len(x), 1)], 1), torch.from_numpy(data["train_y"])
    rates = torch.tensor(lrs)[:, None]

    def run() -> None:
        weight = torch.zeros(len(lrs) * classes, x.shape[1])
        speed = torch.zeros_like(weight)
        for batch in torch.randperm(len(x))[: count * BATCH].split(BATCH):
            rows = x[batch]
            error = (rows @ weight.T).view(len(batch), len(lrs), classes).softmax(dim=2)
            error[torch.arange(len(batch)), :, y[batch]] -= 1
            error *= rates / len(batch)
            speed.addmm_(error.flatten(1).T, rows, beta=0.9)
            weight.sub_(speed)

    return run


def images_seen(labels: np.ndarray) -> int:
    """Return how many images the steps of all probes see, counted once for every rate."""
    short, long = EPOCHS
    total = 0
    for part in draw_parts(labels, (100, 50, 20), 0).values():
        kept = sum(len(part) - len(fold) for fold in validation_folds(labels[part], 0))
        total += kept * (short * len(LEARNING_RATES) + long * FINALISTS) + len(part) * long
    return total


def forward() -> Callable[[], Tensor]:
    encoder = frozen(BackboneConfig(name="resnet50", weights="random"), 224)
    views = torch.randn(FORWARD, 3, 224, 224)
    return lambda: encoder.embed(views)


def measure(data: Data, rounds: int, only: set[str]) -> dict[str, Any]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    parts = data["train_x"], data["train_y"], data["test_x"], data["test_y"]
    unit = data["train_x"] / np.linalg.norm(data["train_x"], axis=1, keepdims=True)
    unit_test = data["test_x"] / np.linalg.norm(data["test_x"], axis=1, keepdims=True)
    logistic = LogisticRegression(C=100.0, max_iter=1000)
    steps = min(STEPS, len(unit) // BATCH)
    timed = steps * BATCH * len(LEARNING_RATES)
    found: dict[str, Any] = {}
    ways: dict[str, tuple[Callable[[], Any], float]] = {
        "finesight": (lambda: found.update(probes=linear_probe(*parts)), 1),
        "before": (old_steps(data, steps), images_seen(data["train_y"]) / timed),
        "logistic_regression": (lambda: logistic.fit(unit, data["train_y"]), 1),
        "knn": (lambda: found.update(knn=knn_places(*parts)), 1),
        "forward": (forward(), max(EPOCHS) * len(unit) / FORWARD),
    }
    if unknown := only - set(ways):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ways)}")
    ways = {name: way for name, way in ways.items() if name in only or not only}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (run, times) in ways.items():
            began = clock()
            run()
            seconds[name].append((clock() - began) * times)
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    of_ours = {
        name: round(statistics.median(a / b for a, b in zip(values, seconds["finesight"], strict=True)), 2)
        for name, values in seconds.items()
    }
    top1 = {f"finesight_{percent}": result.summary()["top1"] for percent, result in found["probes"].items()}
    top1 |= {f"knn_{k}": float(100 * (places <= 1).mean()) for k, places in found.get("knn", {}).items()}
    if "logistic_regression" in ways:
        top1["logistic_regression"] = float(100 * logistic.score(unit_test, data["test_y"]))
    return {
        "train": len(unit),
        "test": len(unit_test),
        "width": unit.shape[1],
        "classes": len(np.unique(data["train_y"])),
        "settings": {percent: result.summary() for percent, result in found["probes"].items()},
        "seconds": {name: round(statistics.median(values), 2) for name, values in seconds.items()},
        "of_finesight": of_ours,
        "estimated": [name for name in ("before", "forward") if name in ways],
        "top1": {name: round(value, 2) for name, value in top1.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few images and classes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="beside finesight, with commas: before,logistic_regression,knn,forward"
    )
    parser.add_argument("--features", type=Path, help="a .npz file; drawn if not given")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = (400, 400, 20, 512) if options.quick else (5994, 5794, 200, 2048)
    data = dict(np.load(options.features)) if options.features else draw_features(*size)
    rounds, kind = 1 if options.quick else options.rounds, "given" if options.features else "drawn"
    only = {"finesight", *options.only.split(",")} if options.only else set()
    facts = {"threads": options.threads, "rounds": rounds, "features": kind}
    print(record_measurement({**facts, **measure(data, rounds, only)}, options.out))


if __name__ == "__main__":
    main()
