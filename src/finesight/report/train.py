"""Train, then write the report of what was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from finesight.features.encoder import Encoder
from finesight.report.run_report import write_run_report
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.run_folder import RunFolder
from finesight.training.train import encoder_cache, is_main_process, prepare_data, train

REPORT_IMAGES = 64  # the report picks its pictures among these


def train_and_report(
    config: TrainConfig, out: Path, runtime: RuntimeConfig | None = None, *, restart: bool = False
) -> RunFolder:
    """``train``, then the report of what was learned."""
    runtime = runtime or RuntimeConfig()
    run = train(config, out, runtime, restart=restart)
    if is_main_process() and not run.report.exists():
        cache, _, _ = prepare_data(config, runtime)
        few = np.linspace(0, len(cache) - 1, min(REPORT_IMAGES, len(cache))).round().astype(np.int64)
        write_run_report(run, Encoder.load(run.encoder), None, encoder_cache(config, runtime, cache, few))
    return run
