"""Options that several commands have. Nothing heavy is imported: --help is quick."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from finesight.errors import Interrupted
from finesight.nn.poolings import offered_poolings
from finesight.search.engines import uri_help

PresetChoice = StrEnum("PresetChoice", {name: name for name in ("auto", "gentle", "paper")})  # type: ignore[misc]
_POOLINGS = {name.replace("-", "_"): name for name in offered_poolings()}
PoolingChoice = StrEnum("PoolingChoice", _POOLINGS)  # type: ignore[misc]
_WORDS = "; ".join(f"{name}: {pooling.words}" for name, pooling in offered_poolings().items())
PoolingOption = Annotated[
    PoolingChoice | None, typer.Option(help=f"How φ becomes a feature; by default as trained. {_WORDS}.")
]

DATA_HELP = "A folder of images, a list of paths, or a known dataset; cub:PATH demands all of CUB (see datasets)."

Data = Annotated[str, typer.Option("--data", help=DATA_HELP)]
CacheDir = Annotated[Path | None, typer.Option(help="Where decoded images are kept.")]
Cluster = Annotated[
    str | None,
    typer.Option(help="Embed on a Ray cluster: ray://HOST:10001, HOST:6379, or local (docs/scaling.md)."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that decode images.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Embed one image at a time: the same bits beside any other images, but slower.")
]
Half = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Compute in bfloat16 on a CPU: faster where it has AVX512_BF16 or AMX. Features differ by 0.5 %.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
By = Annotated[str | None, typer.Option(help="rationale, average, or a pooling of the index.  [default: its first]")]
IndexUri = Annotated[str, typer.Argument(help=uri_help())]
Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
RunOrEncoder = Annotated[Path, typer.Argument(help="The folder of a finished run, or of an encoder.")]
LimitClasses = Annotated[int | None, typer.Option(min=2, help="Only the first classes.")]
Backbone = Annotated[
    str | None, typer.Option(help="Any timm model with a feature map (docs/backbones.md).  [default: resnet50]")
]
Weights = Annotated[
    str | None, typer.Option(help="imagenet, random, a weight file, hf-hub:NAME or timm/NAME.  [default: imagenet]")
]
Resolution = Annotated[int | None, typer.Option(help="Pixels of a view.  [default: by the preset]")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the images.  [default: by the preset]")]
Preset = Annotated[
    PresetChoice,
    typer.Option(help="gentle: for pretrained weights; paper: the paper's recipe, for several GPUs; auto: what suits."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Fit the length of the training to this much time.  [default: 20 on a CPU, unless a length is given]"
    ),
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any setting, as views.blur=0.5.")]
Watch = Annotated[bool, typer.Option("--watch", help="Keep the index as the folder is, until Ctrl-C.")]
Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the folder, with --watch.")]


class RenamedOptions(TyperCommand):
    """A command that still takes the old names of its options, and that Ctrl-C ends without a traceback."""

    renamed = {  # noqa: RUF012
        "--batch": "--batch-size",
        "--clip": "--clip-grad-norm",
        "--accumulate": "--accumulate-grad-batches",
        "--reading": "--variant",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the new name in place of an old one, with one line on standard error, unless both are options."""
        own = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, [self._current(arg, own) for arg in args])

    def invoke(self, ctx: Any) -> Any:
        """End with one word if Ctrl-C comes where the command has no better ones, such as while it imports torch."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT, "Stopped.") from None

    def _current(self, arg: str, own: set[str]) -> str:
        name, sign, value = arg.partition("=")
        new = self.renamed.get(name)
        if new is None or name in own or new not in own:
            return arg
        typer.echo(f"{name} is called {new} now.", err=True)
        return f"{new}{sign}{value}"
