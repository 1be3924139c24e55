"""``finesight train``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from finesight.cli.options import (
    Backbone,
    CacheDir,
    Epochs,
    Minutes,
    Preset,
    PresetChoice,
    Quiet,
    Resolution,
    Settings,
    Weights,
    Workers,
)
from finesight.cli.settings import assignments, parsed
from finesight.errors import FineSightError
from finesight.io.console import console

Logger = StrEnum("Logger", {name: name for name in ("tensorboard", "csv", "wandb", "mlflow")})  # type: ignore[misc]
Variant = StrEnum("Variant", {name: name for name in ("finesight", "paper", "released")})  # type: ignore[misc]


def train(
    out: Annotated[Path, typer.Option(help="The run folder. The same command continues what is in it.")],
    data: Annotated[str | None, typer.Option(help="A folder of images, a list of paths, or CUB_200_2011.")] = None,
    method: Annotated[
        str | None, typer.Option(help="lcr, moco-v2, byol …: see `finesight methods`.  [default: lcr]")
    ] = None,
    rationale: Annotated[
        bool | None, typer.Option(help="Learn the rationale beside the method.  [default: as the method has it]")
    ] = None,
    variant: Annotated[
        Variant | None,
        typer.Option(
            help="Which variant of the rationale is learned (docs/variants.md). It sets nothing else: the paper's "
            "recipe is --preset paper, its queue --queue 65536."
        ),
    ] = None,
    preset: Preset = PresetChoice("auto"),
    minutes: Minutes = None,
    backbone: Backbone = None,
    weights: Weights = None,
    resolution: Resolution = None,
    test_resolution: Annotated[int | None, typer.Option(help="Pixels at test time.  [default: by the preset]")] = None,
    output_stride: Annotated[
        int | None, typer.Option(help="8, 16 or 32; 16 gives 7×7 at 112 px.  [default: 32]")
    ] = None,
    stride_in_1x1: Annotated[
        bool | None, typer.Option(help="ResNets with caffe strides.  [default: what the weight file says]")
    ] = None,
    freeze: Annotated[
        int | None, typer.Option(help="0 nothing, 1 the stem, 2 and stage 1 (of a ViT, block 1), …")
    ] = None,
    epochs: Epochs = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a step, over all devices.  [default: by the preset]")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Past keys that serve as negatives, or auto.")] = None,
    projections: Annotated[int | None, typer.Option(help="K, the filters of the rationale.  [default: 32]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.  [default: the method's]")] = None,
    clip_grad_norm: Annotated[float | None, typer.Option(help="Largest gradient norm.")] = None,
    accumulate_grad_batches: Annotated[
        int | None, typer.Option(help="Batches per optimizer step.  [default: 1]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    limit_images: Annotated[int | None, typer.Option(help="Train on a random part of the images.")] = None,
    limit_classes: Annotated[int | None, typer.Option(help="Train on the first classes of a labeled source.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings; options given here win.")] = None,
    settings: Settings = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, dropping what is in the run folder.")] = False,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="Print every setting, with the reason for each that was chosen, and stop."),
    ] = False,
    devices: Annotated[int, typer.Option(min=1, help="Devices per machine; several train in parallel (DDP).")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines; torchrun, Slurm and Kubernetes tell it.")] = 1,
    cache_shards: Annotated[
        int, typer.Option(min=1, help="Parts of the images; a machine decodes only its own (docs/scaling.md).")
    ] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, 32, 16 or bf16.")] = "auto",
    compile: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile: the first step takes a minute, the others less time.")
    ] = False,
    checkpoint_activations: Annotated[
        bool,
        typer.Option("--checkpoint-activations", help="Keep less for the backward pass: less memory, more time."),
    ] = False,
    checkpoint_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 2.0,
    log_every: Annotated[int, typer.Option(help="Steps between rows of metrics.csv.")] = 10,
    logger: Annotated[
        list[Logger] | None,
        typer.Option(
            help="Where metrics go beside metrics.csv; may be repeated. csv: nowhere.  [default: tensorboard]"
        ),
    ] = None,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Learn features from a folder of images. Run the same command again to continue."""
    from finesight.training.config import RuntimeConfig, validate_settings
    from finesight.training.config_file import commented_yaml, read_yaml
    from finesight.training.dotted_keys import dotted

    flags = {
        "data": data,
        "method": method,
        **_rationale_flags(rationale, variant, projections),
        "backbone.name": backbone,
        "backbone.weights": weights,
        "backbone.output_stride": output_stride,
        "backbone.stride_in_1x1": stride_in_1x1,
        "backbone.freeze": freeze,
        "views.resolution": resolution,
        "test_resolution": test_resolution,
        "objective.queue": None if queue is None else parsed(queue),
        "optim.lr": lr,
        "optim.clip_grad_norm": clip_grad_norm,
        "optim.accumulate_grad_batches": accumulate_grad_batches,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "limit_images": limit_images,
        "limit_classes": limit_classes,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    file = read_yaml(config) if config is not None else {}
    merged = {**dotted(file), **given, **assignments(settings or [])}
    runtime = validate_settings(
        RuntimeConfig,
        devices=devices,
        nodes=nodes,
        cache_shards=cache_shards,
        accelerator=accelerator,
        precision=precision,
        compile=compile,
        checkpoint_activations=checkpoint_activations,
        checkpoint_minutes=checkpoint_minutes,
        log_every=log_every,
        **({"loggers": tuple(map(str, logger))} if logger else {}),
        cache_dir=cache_dir,
        workers=workers,
        progress=not quiet,
    )
    from finesight.io.signals import stoppable
    from finesight.training.cluster import joined, launched
    from finesight.training.presets import plan_training, shared_plan
    from finesight.training.run_folder import RunFolder

    runtime = launched(runtime)
    chosen: dict[str, Any] = {"preset": str(preset), "minutes": minutes, "restart": restart, "dry": show_config}
    with joined(runtime):
        with stoppable(lambda: "Stopped before the first step. The same command begins again."):
            plan = shared_plan(lambda: plan_training(merged, RunFolder(out), runtime, **chosen))
        if show_config:
            print(f"# {plan.words}\n" if plan.words else "", commented_yaml(plan.config, plan.reasons), sep="", end="")
            return
        from finesight.report.train import train_and_report

        if plan.words:
            console.print(plan.words, markup=False)
        run = train_and_report(plan.config, out, runtime, restart=restart, plan=plan.describe())
    console.print(f"The encoder is in {run.encoder}, the report is {run.report}.")


def _rationale_flags(wanted: bool | None, variant: Variant | None, projections: int | None) -> dict[str, Any]:
    """Return the settings of the rationale; a variant asks for it too, and without either the method decides."""
    if wanted is False:
        if variant is not None or projections is not None:
            raise FineSightError("--no-rationale leaves nothing that --variant or --projections could set.")
        return {"rationale": False}
    if wanted and variant is None:
        variant = Variant("finesight")
    return {"rationale.variant": None if variant is None else str(variant), "rationale.projections": projections}
