"""The demo: drawn look-alikes, the untrained network, MoCo v2 and LCR side by side."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight.data.layouts.lookalikes import LookalikesConfig, habitats, make_lookalikes
from finesight.evaluation.evaluate import Evaluation, evaluate_poolings
from finesight.evaluation.retrieval import neighbors
from finesight.evaluation.score_table import score_table
from finesight.features.encoder import Encoder, pixels
from finesight.io.atomic import write_atomic
from finesight.plots.figures import score_bars
from finesight.plots.html import Section, build_report
from finesight.plots.sheets import attention_overlays, retrieval_rows
from finesight.report.run_report import PICTURES, picture_sections, search_rows
from finesight.report.train import train_and_report
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.save_encoder import frozen_encoder
from finesight.version import __version__

SETTINGS: dict[str, Any] = {
    "backbone.name": "test_resnet",
    "backbone.weights": "random",
    "backbone.output_stride": 8,
    "backbone.dilate": False,
    "views.resolution": 80,
    "views.scale": (0.3, 1.0),
    "views.hue": 0.05,
    "views.gray": 0.05,
    "epochs": 16,
    "batch_size": 32,
    "objective.dim": 128,
    "objective.momentum": 0.99,
    "objective.temperature": 0.1,
    "optim.lr": 0.03,
    "validation.fraction": 0.0,
}
# A quick branch, as the run is short, and its mask as it is. Nothing of the branch reaches the encoder, which is then
# that of MoCo v2 to the last bit: one training serves both, and whatever LCR gains here, its mask gains.
RATIONALE: dict[str, Any] = {
    "rationale.branch_lr": 0.01,
    "rationale.encoder_gradient": 0.0,
    "rationale.mask_power": 1.0,
}
SYSTEMS: dict[str, tuple[str, str]] = {  # row of the table -> network, pooling
    "untrained": ("untrained", "average"),
    "MoCo v2": ("trained", "average"),
    "MoCo v2, GeM": ("trained", "gem"),
    "MoCo v2, energy mask": ("trained", "energy"),
    "LCR, mask alone": ("trained", "rationale"),
    "LCR": ("trained", "rationale-gem"),
}
SHOWN = ("MoCo v2, energy mask", "LCR")  # whose attention is drawn: a plain average has none
WORDS = (
    "The birds of two species differ only in small parts, and backgrounds are drawn without looking at the species. "
    "MoCo v2 averages its feature map; GeM and the energy mask (positions weighed by their total activation) are "
    "controls that need no learning. LCR pools with its mask inside GeM; the row above it is the mask alone. No "
    "gradient of the mask's branch reaches the encoder here, so one network serves every row but the first. All "
    "numbers are percentages on test images. Attention: the share of it that lies on the bird; an average looks "
    "everywhere alike, so its share is the bird's part of the picture. Background: how often the nearest image has "
    "the same kind of background, which a feature about birds should not know."
)


@dataclass(frozen=True)
class Demo:
    """What the demo leaves behind."""

    results: dict[str, Any]
    table: list[dict[str, object]]
    report: Path


def run_demo(
    out: Path,
    seed: int,
    *,
    progress: bool = True,
    drawing: LookalikesConfig | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Demo:
    """Draw, train, evaluate and report into ``out``. A demo that was cut off continues, a finished one evaluates again.

    ``drawing`` and ``settings`` change the images and the training, for a smaller demo.
    """
    began = time.monotonic()
    root = out / f"seed-{seed}"
    data = make_lookalikes(root / "data", (drawing or LookalikesConfig()).model_copy(update={"seed": seed}))
    runtime = RuntimeConfig(cache_dir=out / "cache", progress=progress)
    config = build_config(
        {**SETTINGS, **RATIONALE, **(settings or {}), "data": str(data.root), "method": "lcr", "seed": seed}
    )
    run = train_and_report(config, root / "lcr", runtime)
    encoders = {"untrained": frozen_encoder(config, "average"), "trained": Encoder.load(run.root)}
    scored = {
        network: evaluate_poolings(
            encoder, data, _poolings(network), linear=False, cache_dir=runtime.cache_dir, progress=progress
        )
        for network, encoder in encoders.items()
    }
    evaluations = {system: scored[network][pooling] for system, (network, pooling) in SYSTEMS.items()}
    results: dict[str, Any] = {
        "command": f"finesight demo --seed {seed}",
        "seed": seed,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "seconds": round(time.monotonic() - began, 1),
        "scores": {name: evaluation.scores for name, evaluation in evaluations.items()},
    }
    for name, evaluation in evaluations.items():
        results["scores"][name]["background"] = _same_background(evaluation)
    write_atomic(root / "results.json", json.dumps(results, indent=2) + "\n")
    table = score_table(results["scores"])
    for row in table:
        row["background"] = results["scores"][str(row["system"])]["background"]["rank1"]
    report = root / "report.html"
    _write_report(report, table, encoders["trained"], evaluations)
    return Demo(results, table, report)


def _poolings(network: str) -> list[str]:
    return [pooling for other, pooling in SYSTEMS.values() if other == network]


def _same_background(evaluation: Evaluation) -> dict[str, float]:
    """Return how often the nearest test image has the same habitat, and how often a random one would."""
    known = habitats(evaluation.cache.source)[evaluation.test]
    features = evaluation.extracted.features[evaluation.pooling]
    nearest, _ = neighbors(features, np.arange(len(known)), 1)
    shares = np.bincount(known) / len(known)
    return {"rank1": 100 * float((known[nearest[:, 0]] == known).mean()), "chance": 100 * float((shares**2).sum())}


def _write_report(
    report: Path, table: list[dict[str, object]], lcr: Encoder, evaluations: dict[str, Evaluation]
) -> None:
    first = evaluations["LCR"]
    places = np.linspace(0, len(first.test) - 1, PICTURES).round().astype(int)
    pictures = [pixels(lcr, view) for view in lcr.cached_views(first.cache, first.test[places])]
    maps = [[evaluations[name].extracted.attention[place] for name in SHOWN] for place in places]
    overlay = attention_overlays(pictures, maps, list(SHOWN))
    bars = [{key: value for key, value in row.items() if key != "background"} for row in table]
    sections = [
        Section("Scores", WORDS, table=table, images=[("scores", score_bars(bars))]),
        Section("Attention", "Where the features come from, on the same birds.", images=[("attention", overlay)]),
    ]
    for name in ("MoCo v2", "LCR"):
        rows = retrieval_rows(search_rows(evaluations[name]))
        sections.append(Section(f"Search results: {name}", images=[("query and nearest images", rows)]))
    sections += picture_sections(lcr, first.cache, first.test)[1:]
    build_report(report, title="FineSight demo: look-alike birds", sections=sections)
