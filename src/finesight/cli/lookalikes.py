"""``finesight lookalikes``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def lookalikes(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    species: Annotated[int | None, typer.Option(help="[default: 100]")] = None,
    train_per_species: Annotated[int | None, typer.Option(help="[default: 12]")] = None,
    test_per_species: Annotated[int | None, typer.Option(help="[default: 10]")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels.  [default: 96]")] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
) -> None:
    """Draw the built-in data set of look-alike birds into a folder."""
    from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
    from finesight.training.config import validate_settings

    given = {
        "species": species,
        "train_per_species": train_per_species,
        "test_per_species": test_per_species,
        "size": size,
        "seed": seed,
    }
    config = validate_settings(LookalikesConfig, **{key: value for key, value in given.items() if value is not None})
    print(make_lookalikes(out, config).describe())
