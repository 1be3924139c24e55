"""Options that several commands have. Nothing heavy is imported: --help is quick."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from finesight.nn.poolings import offered_poolings
from finesight.search.engines import uri_help

_POOLINGS = {name.replace("-", "_"): name for name in offered_poolings()}
PoolingChoice = StrEnum("PoolingChoice", _POOLINGS)  # type: ignore[misc]
_WORDS = "; ".join(f"{name}: {pooling.words}" for name, pooling in offered_poolings().items())
PoolingOption = Annotated[
    PoolingChoice | None, typer.Option(help=f"How φ becomes a feature; by default as trained. {_WORDS}.")
]

DATA_HELP = "A folder of images, a list of paths, or a known dataset; cub:PATH demands all of CUB (see datasets)."

Data = Annotated[str, typer.Option("--data", help=DATA_HELP)]
CacheDir = Annotated[Path | None, typer.Option(help="Where decoded images are kept.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that decode images.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
By = Annotated[str | None, typer.Option(help="rationale, average, or a pooling of the index.  [default: its first]")]
IndexUri = Annotated[str, typer.Argument(help=uri_help())]
Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
RunOrEncoder = Annotated[Path, typer.Argument(help="The folder of a finished run, or of an encoder.")]
LimitClasses = Annotated[int | None, typer.Option(min=2, help="Only the first classes.")]
Backbone = Annotated[str | None, typer.Option(help="Any convolutional timm model.  [default: resnet50]")]
Weights = Annotated[str | None, typer.Option(help="imagenet, random, or a weight file.  [default: imagenet]")]
Resolution = Annotated[int | None, typer.Option(help="Pixels of a view.  [default: 224]")]
Epochs = Annotated[int | None, typer.Option(help="[default: 100]")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any setting, as views.blur=0.5.")]


class RenamedOptions(TyperCommand):
    """A command that still takes the old names of its options, with one line on standard error for each."""

    renamed = {  # noqa: RUF012
        "--batch": "--batch-size",
        "--clip": "--clip-grad-norm",
        "--accumulate": "--accumulate-grad-batches",
        "--reading": "--variant",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the new name in place of an old one, unless the command has an option of that name."""
        own = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, [self._current(arg, own) for arg in args])

    def _current(self, arg: str, own: set[str]) -> str:
        name, sign, value = arg.partition("=")
        new = self.renamed.get(name)
        if new is None or name in own or new not in own:
            return arg
        typer.echo(f"{name} is called {new} now.", err=True)
        return f"{new}{sign}{value}"
