"""Options that several commands have. Nothing heavy is imported: --help is quick."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finesight.nn.pooling_config import POOLINGS

Pooling = StrEnum("Pooling", {name.replace("-", "_"): name for name in POOLINGS})  # type: ignore[misc]
PoolingOption = Annotated[Pooling | None, typer.Option(help="How φ becomes a feature; by default as trained.")]

DATA_HELP = "A folder of images, a list of paths, or a known dataset; cub:PATH demands all of CUB (see datasets)."

Data = Annotated[str, typer.Option("--data", help=DATA_HELP)]
CacheDir = Annotated[Path | None, typer.Option(help="Where decoded images are kept.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that decode images.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
