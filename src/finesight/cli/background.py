"""The training that ``finesight up`` runs in the background: ``python -m finesight.cli.background``.

The first line of standard input says what to train, as JSON. When standard input ends, the training saves and stops:
so it never outlives the server that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from finesight.cli.exits import exit_with_message
from finesight.io.signals import stoppable

NICE = 5  # the page answers first


def main() -> None:
    """Train, with the messages and the exit codes of the command line."""
    with exit_with_message(), stoppable(lambda: "Stopped before the first step. It begins again the next time."):
        os.nice(NICE)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        request = json.loads(sys.stdin.readline())
        threading.Thread(target=_stop_with_parent, daemon=True).start()
        _train(**request)


def _stop_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _train(
    out: str,
    given: dict[str, Any],
    preset: str,
    minutes: float | None,
    cache_dir: str | None,
    workers: int | None,
    more: bool,
) -> None:
    """Train, or continue; with ``more`` a run that is done goes on."""
    from finesight.report.train import train_and_report
    from finesight.training.config import RuntimeConfig
    from finesight.training.more import extend_run
    from finesight.training.presets import plan_training
    from finesight.training.run_folder import RunFolder

    run = RunFolder(Path(out))
    if more:
        extend_run(run)
        given = {"data": given["data"]}
    runtime = RuntimeConfig(cache_dir=None if cache_dir is None else Path(cache_dir), workers=workers, progress=False)
    plan = plan_training(given, run, runtime, preset=preset, minutes=minutes, strict=False)  # `up` has checked them
    train_and_report(plan.config, run.root, runtime, plan=plan.describe())


if __name__ == "__main__":
    main()
