"""``finesight demo``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from finesight.cli.options import Json, Quiet


def demo(
    out: Annotated[Path, typer.Option(help="Where data, runs and the report go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw look-alikes, train MoCo v2 and LCR, and compare them with the untrained network."""
    from finesight.io.console import print_table
    from finesight.report.demo import run_demo

    result = run_demo(out, seed, progress=not quiet)
    if as_json:
        print(json.dumps(result.results))
        return
    print_table(result.table)
    print(f"Report: {result.report}")
