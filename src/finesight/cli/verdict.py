"""``finesight verdict``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from finesight.cli.options import CacheDir, Json, Quiet, Run, Workers
from finesight.errors import FineSightError


class Keep(StrEnum):
    """What is kept as the encoder of a run."""

    TRAINED = "trained"
    FROZEN = "frozen"


def verdict(
    run: Run,
    keep: Annotated[
        Keep | None, typer.Option(help="Keep the trained or the frozen features, whatever the verdict.")
    ] = None,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether training helped, by labels of held-out images or by clicks, and which features are kept."""
    from finesight.report.verdict import renew_verdict
    from finesight.training.config import RuntimeConfig
    from finesight.training.run_folder import RunFolder

    runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not (quiet or as_json))
    made = renew_verdict(RunFolder(run), runtime, keep=None if keep is None else keep.value)
    if made is None:
        raise FineSightError(f"{run} is a run of method frozen, which trains nothing: there is nothing to compare.")
    print(made.model_dump_json() if as_json else made.words)
