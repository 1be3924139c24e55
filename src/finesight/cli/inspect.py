"""``finesight inspect``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from finesight.cli.options import DATA_HELP, Json, Quiet, Workers


def inspect(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    as_json: Json = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Say what FineSight sees in a folder or list: images, sizes, labels, splits, and files it cannot use."""
    from finesight.data.inspection import inspect_source
    from finesight.data.sources import open_source
    from finesight.data.verification import describe_differences
    from finesight.io.console import printable_line

    source = open_source(data)
    found = inspect_source(source, workers=workers, progress=not quiet)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    for line in found.lines():
        print(printable_line(line))
    if words := describe_differences(source):
        print(f"{words}\nThat is fine for a part of it; to demand all of it, write {source.kind}:{data}")
    print(f"`finesight datasets check {data}` reads every image and finds those that look the same.")
