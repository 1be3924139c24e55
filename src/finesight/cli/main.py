"""The command line: parse, call, print. Heavy imports live inside the commands, so that --help is quick."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from finesight.cli.clusters import clusters, duplicates
from finesight.cli.compare import compare
from finesight.cli.datasets import datasets_app
from finesight.cli.evaluate import evaluate
from finesight.cli.explain import explain
from finesight.cli.export import export
from finesight.cli.index import index
from finesight.cli.options import DATA_HELP, CacheDir, Json, PoolingOption, Quiet, Workers
from finesight.cli.search import search
from finesight.cli.serve import serve
from finesight.cli.settings import assignments, parsed
from finesight.cli.up import up
from finesight.errors import FineSightError, Interrupted
from finesight.paper.bench_command import bench_app
from finesight.version import __version__

app = typer.Typer(
    name="finesight",
    help="Learn, without labels, features that tell look-alike images apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(datasets_app, name="datasets")
for command in (clusters, compare, duplicates, evaluate, explain, export, index, search, serve, up):
    app.command()(command)

Reading = StrEnum("Reading", {name: name for name in ("finesight", "paper", "released")})  # type: ignore[misc]

Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"finesight {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn, without labels, features that tell look-alike images apart."""


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="The run folder. The same command continues what is in it.")],
    data: Annotated[str | None, typer.Option(help="A folder of images, a list of paths, or CUB_200_2011.")] = None,
    method: Annotated[
        str | None, typer.Option(help="lcr, moco-v2, byol …: see `finesight methods`.  [default: lcr]")
    ] = None,
    rationale: Annotated[
        bool | None, typer.Option(help="Learn the rationale beside the method.  [default: as the method has it]")
    ] = None,
    reading: Annotated[Reading | None, typer.Option(help="How the rationale is read (docs/readings.md).")] = None,
    backbone: Annotated[str | None, typer.Option(help="Any convolutional timm model.  [default: resnet50]")] = None,
    weights: Annotated[
        str | None, typer.Option(help="imagenet, random, or a weight file.  [default: imagenet]")
    ] = None,
    resolution: Annotated[int | None, typer.Option(help="Pixels of a view.  [default: 224]")] = None,
    test_resolution: Annotated[int | None, typer.Option(help="Pixels at test time.  [default: as in training]")] = None,
    output_stride: Annotated[
        int | None, typer.Option(help="8, 16 or 32; 16 gives 7×7 at 112 px.  [default: 32]")
    ] = None,
    stride_in_1x1: Annotated[
        bool | None, typer.Option(help="ResNets with caffe strides.  [default: what the weight file says]")
    ] = None,
    freeze: Annotated[int | None, typer.Option(help="0 nothing, 1 the stem, 2 and stage 1, …")] = None,
    epochs: Annotated[int | None, typer.Option(help="[default: 100]")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step, over all devices.  [default: 128]")] = None,
    queue: Annotated[str | None, typer.Option(help="Past keys that serve as negatives, or auto.")] = None,
    projections: Annotated[int | None, typer.Option(help="K, the filters of the rationale.  [default: 32]")] = None,
    lr: Annotated[float | None, typer.Option(help="[default: 0.03]")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches per optimiser step.  [default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    limit_images: Annotated[int | None, typer.Option(help="Train on a random part of the images.")] = None,
    limit_classes: Annotated[int | None, typer.Option(help="Train on the first classes of a labelled source.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings; options given here win.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any setting, as views.blur=0.5.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, dropping what is in the run folder.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the whole configuration and stop.")] = False,
    devices: Annotated[int, typer.Option(min=1, help="Devices per machine; several train in parallel (DDP).")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, 32, 16 or bf16.")] = "auto",
    checkpoint_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 2.0,
    log_every: Annotated[int, typer.Option(help="Steps between rows of metrics.csv.")] = 10,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Learn features from a folder of images. Run the same command again to continue."""
    from finesight.training.config import build_config, dotted, read_yaml

    flags = {
        "data": data,
        "method": method,
        **_rationale_flags(rationale, reading, projections),
        "backbone.name": backbone,
        "backbone.weights": weights,
        "backbone.output_stride": output_stride,
        "backbone.stride_in_1x1": stride_in_1x1,
        "backbone.freeze": freeze,
        "views.resolution": resolution,
        "test_resolution": test_resolution,
        "objective.queue": None if queue is None else parsed(queue),
        "optim.lr": lr,
        "optim.clip": clip,
        "optim.accumulate": accumulate,
        "epochs": epochs,
        "batch": batch,
        "seed": seed,
        "limit_images": limit_images,
        "limit_classes": limit_classes,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    file = read_yaml(config) if config is not None else {}
    merged = build_config({**dotted(file), **given, **assignments(settings or [])})
    if show_config:
        import yaml

        print(yaml.safe_dump(merged.model_dump(mode="json"), sort_keys=False), end="")
        return
    runtime = _runtime(
        devices=devices,
        nodes=nodes,
        accelerator=accelerator,
        precision=precision,
        checkpoint_minutes=checkpoint_minutes,
        log_every=log_every,
        cache_dir=cache_dir,
        workers=workers,
        progress=not quiet,
    )
    from finesight.io.console import console
    from finesight.report.train import train_and_report

    run = train_and_report(merged, out, runtime, restart=restart)
    console.print(f"The encoder is in {run.encoder}, the report is {run.report}.")


@app.command()
def methods(as_json: Json = False) -> None:
    """List every method: what it does, whether it has a rationale, and its row in the paper's Table 2."""
    from finesight.methods.recipes import RECIPES

    if as_json:
        print(json.dumps({name: vars(entry) for name, entry in RECIPES.items()}))
        return
    width = max(map(len, RECIPES))
    for name, entry in RECIPES.items():
        row = f"  [paper: {entry.paper}]" if entry.paper else ""
        print(f"{name:<{width}}  {entry.about}{row}")


@app.command()
def embed(
    run: Run,
    images: Annotated[str, typer.Argument(help="A folder of images or a list of paths.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="features.npz, .parquet or .csv")],
    pooling: PoolingOption = None,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write the feature of every image, with its path, in a stable order."""
    from finesight import api
    from finesight.features.writing import check_output, embed_images
    from finesight.io.console import console

    check_output(out)
    name: Any = None if pooling is None else str(pooling)
    written, skipped = embed_images(
        api.load(run), images, out, pooling=name, cache_dir=cache_dir, workers=workers, progress=not quiet
    )
    console.print(f"{written} features in {out}" + (f"; {skipped} files were skipped" if skipped else ""))


@app.command()
def inspect(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
) -> None:
    """Say what FineSight sees in a folder or list: images, classes, splits."""
    from finesight.data.layouts.official import missing_words
    from finesight.data.sources import open_source

    source = open_source(data)
    print(source.describe())
    if words := missing_words(source):
        print(f"{words}\nThat is fine for a part of it; to demand all of it, write {source.kind}:{data}")


@app.command()
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
    from finesight.training.config import validated

    given = {
        "species": species,
        "train_per_species": train_per_species,
        "test_per_species": test_per_species,
        "size": size,
        "seed": seed,
    }
    config = validated(LookalikesConfig, **{key: value for key, value in given.items() if value is not None})
    print(make_lookalikes(out, config).describe())


@app.command()
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


def _rationale_flags(wanted: bool | None, reading: Reading | None, projections: int | None) -> dict[str, Any]:
    """A reading asks for the rationale too; without either, the method decides."""
    if wanted is False:
        if reading is not None or projections is not None:
            raise FineSightError("--no-rationale leaves nothing that --reading or --projections could set.")
        return {"rationale": False}
    if wanted and reading is None:
        reading = Reading("finesight")
    return {"rationale.reading": None if reading is None else str(reading), "rationale.projections": projections}


def _runtime(**values: Any) -> Any:
    from finesight.training.config import RuntimeConfig, validated

    return validated(RuntimeConfig, **values)


def main() -> None:
    """Run the app; an error that is the user's to fix is one message and exit code 2, without a trace."""
    # Threads that wait by spinning make a busy machine many times slower; must be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except FineSightError as error:
        print(f"finesight: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted as stop:
        print(f"finesight: {stop}", file=sys.stderr)
        raise SystemExit(stop.exit_code) from None


if __name__ == "__main__":
    main()
