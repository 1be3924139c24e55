"""Train, then write the report of what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from finesight.features.encoder import Encoder
from finesight.io.console import console
from finesight.io.signals import stoppable
from finesight.report.run_report import write_run_report
from finesight.training.cluster import is_main_process
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.progress import RunProgress
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages
from finesight.training.train import train
from finesight.training.train_images import encoder_cache, images_again
from finesight.training.verdict import read_verdict, write_verdict

REPORT_IMAGES = 64  # the report picks its pictures among these


def train_and_report(
    config: TrainConfig,
    out: Path,
    runtime: RuntimeConfig | None = None,
    *,
    restart: bool = False,
    plan: Mapping[str, Any] | None = None,
) -> RunFolder:
    """``train``, then the verdict and the report of what was learned."""
    runtime = runtime or RuntimeConfig()
    run = train(config, out, runtime, restart=restart, plan=plan)
    if not is_main_process():
        return run
    progress = RunProgress(run.progress)
    with progress.ending(), stoppable(progress.stopped):
        if read_verdict(run) is None or not run.report.exists():
            progress.tell("checking", "comparing with the frozen network")
        verdict = write_verdict(run, runtime)
        if verdict is not None:
            console.print(verdict.words, markup=False)
        if not run.report.exists():
            progress.tell("report", "writing the report")
            source, _ = images_again(config, runtime, RunImages.read(run.images))
            few = np.linspace(0, len(source) - 1, min(REPORT_IMAGES, len(source))).round().astype(np.int64)
            write_run_report(run, Encoder.load(run.encoder), None, encoder_cache(config, runtime, source, few))
    if progress.phase is not None:
        progress.tell("done", "training is done")
    return run
