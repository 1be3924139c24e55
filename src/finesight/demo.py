"""The demo: drawn look-alikes, the untrained network, MoCo v2 and LCR side by side."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finesight import __version__
from finesight.config import RuntimeConfig, build_config
from finesight.console import console
from finesight.data.lookalikes import LookalikesConfig, make_lookalikes
from finesight.encoder import Encoder
from finesight.evaluation.evaluate import Evaluation, evaluate
from finesight.report.figures import attention_overlays, retrieval_rows, score_bars
from finesight.report.html import Section, build_report
from finesight.report.run_report import picture_sections, pixels, score_table, search_rows
from finesight.training.train import train_and_report, untrained_encoder

SETTINGS: dict[str, Any] = {
    "backbone.name": "test_resnet",
    "backbone.weights": "random",
    "backbone.output_stride": 16,
    "views.resolution": 80,
    "epochs": 40,
    "batch": 64,
    "objective.dim": 128,
    "objective.momentum": 0.99,
    "optim.lr": 0.06,
    "validation.fraction": 0.0,
}
METHODS = {"moco-v2": "MoCo v2", "lcr": "LCR"}


@dataclass(frozen=True)
class Demo:
    """What the demo leaves behind."""

    results: dict[str, Any]
    table: list[dict[str, object]]
    report: Path


def run_demo(out: Path, seed: int, *, progress: bool = True) -> Demo:
    """Everything, into ``out``; a demo that was cut off continues, and a finished one only evaluates again."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    root = out / f"seed-{seed}"
    data = make_lookalikes(root / "data", LookalikesConfig(seed=seed))
    runtime = RuntimeConfig(cache_dir=out / "cache", progress=progress)
    console.print(f"Drawn: {data.describe()}")
    encoders: dict[str, Encoder] = {}
    for method, name in METHODS.items():
        config = build_config({**SETTINGS, "data": str(data.root), "method": method, "seed": seed})
        encoders.setdefault("untrained", untrained_encoder(config))
        console.print(f"Training {name}", style="bold")
        run = train_and_report(config, root / method, runtime)
        encoders[name] = Encoder.load(run.root)
    evaluations = {
        name: evaluate(encoder, data, cache_dir=runtime.cache_dir, progress=progress)
        for name, encoder in encoders.items()
    }
    results: dict[str, Any] = {
        "seed": seed,
        "version": __version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        "seconds": round(time.monotonic() - began, 1),
        "scores": {name: evaluation.scores for name, evaluation in evaluations.items()},
    }
    (root / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    table = score_table(results["scores"])
    report = root / "report.html"
    _write_report(report, table, encoders, evaluations)
    return Demo(results, table, report)


def _write_report(
    report: Path, table: list[dict[str, object]], encoders: dict[str, Encoder], evaluations: dict[str, Evaluation]
) -> None:
    first = next(iter(evaluations.values()))
    chosen = first.test[np.linspace(0, len(first.test) - 1, 6).round().astype(int)]
    places = np.searchsorted(first.test, chosen)
    lcr = encoders["LCR"]
    pictures = [pixels(lcr, view) for view in lcr.view(*first.cache.batch(chosen))]
    maps = [[e.extracted.attention[place] for e in evaluations.values()] for place in places]
    overlay = attention_overlays(pictures, maps, list(evaluations))
    words = (
        "The birds differ only in small parts; backgrounds are drawn without looking at the species. All scores are "
        "percentages on the test images. Where there is no rationale, the attention shown is channel energy."
    )
    sections = [
        Section("Scores", words, table=table, images=[("scores", score_bars(table))]),
        Section("Attention", "Where each network looks, on the same birds.", images=[("attention", overlay)]),
    ]
    for name in METHODS.values():
        rows = retrieval_rows(search_rows(evaluations[name]))
        sections.append(Section(f"Search results: {name}", images=[("query and nearest images", rows)]))
    sections += picture_sections(lcr, first.cache, first.test)[1:]
    build_report(report, title="FineSight demo: look-alike birds", sections=sections)
