"""``finesight inspect``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from finesight.cli.options import DATA_HELP


def inspect(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
) -> None:
    """Say what FineSight sees in a folder or list: images, classes, splits."""
    from finesight.data.sources import open_source
    from finesight.data.verification import describe_differences

    source = open_source(data)
    print(source.describe())
    if words := describe_differences(source):
        print(f"{words}\nThat is fine for a part of it; to demand all of it, write {source.kind}:{data}")
