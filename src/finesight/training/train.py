"""From a configuration to a finished run folder. Calling it again continues where it stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.retrieval import retrieval
from finesight.features.extract import extract
from finesight.io.atomic import WriteError, write_atomic
from finesight.io.console import console, format_count
from finesight.io.signals import stoppable
from finesight.methods.base import find_method
from finesight.nn.backbone import Backbone
from finesight.nn.poolings import find_pooling
from finesight.rationale.loss import RATIONALE_METRICS
from finesight.training.batches import Batches
from finesight.training.callbacks import Checkpointer, Journal, Progress, StepHooks
from finesight.training.checkpoints import (
    DoesNotFit,
    checkpoints,
    must_fit,
    none_usable,
    readable_checkpoints,
    step_of,
)
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.half_precision import require_half_precision, uses_half_precision
from finesight.training.health import HEALTH_METRICS
from finesight.training.metrics_log import MetricsLog, metric_series
from finesight.training.module import LOSS_METRICS, RATE_METRICS, TrainingModule
from finesight.training.progress import RunProgress
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages, carry_rows, path_hashes, restored_config, steps_per_epoch
from finesight.training.save_encoder import make_encoder, save_encoder, save_frozen
from finesight.training.train_images import encoder_cache, prepare_data

PRECISIONS: dict[str, Literal["32-true", "16-mixed", "bf16-mixed"]] = {
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}  # our names -> Lightning's
VALIDATION_METRICS = {"val_rank1": "held-out rank-1 (%)", "val_mAP": "held-out mAP (%)"}  # words for people


def metric_words(method: str) -> dict[str, str]:
    """Return what a run of ``method`` may log, each metric with its words for people, in the order of the curves."""
    objective = find_method(method).find_objective()
    own = {} if objective is None else objective.metrics
    return {**LOSS_METRICS, **own, **HEALTH_METRICS, **RATIONALE_METRICS, **VALIDATION_METRICS, **RATE_METRICS}


def train(
    config: TrainConfig,
    out: Path,
    runtime: RuntimeConfig | None = None,
    *,
    restart: bool = False,
    plan: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Train as configured into the run folder ``out`` and return it; the same call continues an unfinished run.

    ``plan`` says why the settings are as they are (see ``training.presets``); it is stored with a new run.

    Raises FineSightError if the data or the settings cannot be used or the weights become not-a-number, and
    Interrupted if the run was stopped by a signal.
    """
    config, runtime = config.with_absolute_paths(), runtime or RuntimeConfig()
    run = RunFolder(out)
    main = is_main_process()
    console.quiet = not main
    progress = RunProgress(run.progress if main else None)
    with run.locked() if main else contextlib.nullcontext():
        if main:
            run.enter(config, restart=restart)
            if plan is not None and not run.has_begun:
                write_atomic(run.plan, json.dumps(plan, indent=1) + "\n")
        if run.is_finished:
            console.print(f"{out} is finished: nothing to do. (--restart begins anew.)")
            return run
        with progress.ending(), stoppable(progress.stopped) if main else contextlib.nullcontext():
            if main and uses_half_precision(runtime):
                progress.tell("preparing", "trying half precision", 0, 0)
                require_half_precision()
            known = RunImages.read(run.images) if checkpoints(run.checkpoints) else None
            cache, images, held_out = prepare_data(config, runtime, run if main else None, progress, known)
            progress.tell("preparing", f"loading the network for {format_count(len(images), 'image')}", 0, 0)
            if find_method(config.method).objective is not None:
                _fit(config, runtime, run, cache, images, held_out, progress, known)
            elif main:
                save_frozen(config, run)
            progress.tell("done", "training is done")
    return run


def _fit(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder,
    cache: DecodedCache,
    images: NDArray[np.int64],
    held_out: NDArray[np.int64],
    progress: RunProgress,
    known: RunImages | None,
) -> None:
    processes = runtime.devices * runtime.nodes
    if config.batch_size % processes:
        raise FineSightError(
            f"--batch-size {config.batch_size} cannot be shared by {processes} devices: use a multiple of it."
        )
    hashes = path_hashes(cache.source)[images]
    module, trainer, loaded = _begin_or_continue(config, runtime, run, cache, len(images), hashes, known)
    per_epoch, start = module.steps_per_epoch, int(module.steps)
    main = trainer.is_global_zero
    batches = Batches(
        cache,
        images,
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps=config.max_steps,
        seed=config.seed,
        start=start,
        rank=trainer.global_rank,
        processes=processes,
        hook=module.hook,
        steps_per_epoch=per_epoch,
    )
    rows = torch.from_numpy(hashes.view(np.int64)) if module.hook.per_image else None
    known_rows = None if loaded is None else loaded.get("rows")
    saver = Checkpointer(run, runtime.checkpoint_minutes, batches.total, rows, known_rows)
    callbacks: list[L.Callback] = [saver]
    module.hook.on_fit_start(cache, images, runtime.cache_dir, runtime.progress and main)
    log = None
    if main:
        if known is None:
            RunImages.of(cache, held_out, per_epoch).write(run.images)
        length = f"{format_count(len(images), 'image')}, {format_count(batches.total, 'step')}"
        console.print(f"{module.objective.backbone.load_report}; {length}.")
        if start:
            console.print(f"Continuing at step {start} of {batches.total}.")
        rationale = RATIONALE_METRICS if config.rationale else ()
        own = (*LOSS_METRICS, *HEALTH_METRICS, *RATE_METRICS)
        names = [*own, *module.objective.metrics, *rationale, *VALIDATION_METRICS]
        log = MetricsLog(run.metrics_file, names, run.root / "tensorboard", start)
        validate = _validator(config, runtime, run, module, cache, held_out)
        every = config.validation.every_n_epochs
        journal = Journal(log, log_every=runtime.log_every, validate=validate, validate_every=every, progress=progress)
        callbacks.insert(0, journal)  # a saved step is a logged one
        callbacks.append(Progress(progress, batches.total, start, config.batch_size, show=runtime.progress))
    trainer.callbacks += callbacks  # type: ignore[attr-defined]
    try:
        if len(batches):
            trainer.fit(module, batches)
        if not module.is_finite():
            raise FineSightError("The weights are not numbers after the last step.")
    except WriteError as error:
        raise FineSightError(f"{error} {_what_is_kept(run)}") from error
    except FineSightError as error:
        newest = next(reversed(checkpoints(run.checkpoints)), "none was written yet")
        raise FineSightError(
            f"{error} Training has stopped. Last good checkpoint: {newest}. "
            "Try a lower --lr, --clip-grad-norm 1, or full precision (--precision 32), with another --out."
        ) from error
    finally:
        if log is not None:
            log.close()
    if saver.interrupted is not None and main:
        steps = f"{int(module.steps)} of {format_count(batches.total, 'step')}"
        raise Interrupted(saver.interrupted, f"Stopped after {steps}; all is saved. The same command continues.")
    if main:
        progress.tell("saving", "saving the encoder")
        save_encoder(config, run, module)


def _begin_or_continue(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder,
    cache: DecodedCache,
    images: int,
    hashes: NDArray[np.uint64],
    known: RunImages | None,
) -> tuple[TrainingModule, L.Trainer, dict[str, Any] | None]:
    """Return the module as of the newest checkpoint that fits, its trainer and that checkpoint; None for a new run."""
    for file, state in readable_checkpoints(run.checkpoints):
        try:
            per_epoch = steps_per_epoch(run, images // config.batch_size) if known is None else known.steps_per_epoch
            with must_fit(file):
                sized, learned = restored_config(config, state["module"])
            _require_classes(run, cache, learned)
            module, trainer = _build(sized, runtime, cache, images, per_epoch)
            with must_fit(file):
                carry_rows(module.hook, state["module"], state.get("images"), hashes)
                _load_state(module, trainer, state, file)
            return module, trainer, state
        except DoesNotFit as misfit:
            console.print(f"{misfit}: the one before it is used.", markup=False)
    if checkpoints(run.checkpoints):
        raise none_usable(run.checkpoints)
    return *_build(config, runtime, cache, images, images // config.batch_size), None


def _require_classes(run: RunFolder, cache: DecodedCache, learned: int) -> None:
    """Raise FineSightError if a run of an earlier version learns other classes than there are."""
    classes = len(cache.source.classes)
    if learned and learned != classes:
        raise FineSightError(
            f"{run.root} learns {format_count(learned, 'class', 'classes')} and {cache.source.root} has {classes}. "
            "This run is of an earlier version, which did not keep their names: give it the classes back, or begin "
            "anew with --restart."
        )


def _build(
    config: TrainConfig, runtime: RuntimeConfig, cache: DecodedCache, images: int, per_epoch: int
) -> tuple[TrainingModule, L.Trainer]:
    module = TrainingModule(config, images=images, steps_per_epoch=per_epoch, classes=len(cache.source.classes))
    if runtime.compile and runtime.checkpoint_activations:
        raise FineSightError("--compile decides itself what is kept: leave out --checkpoint-activations or --compile.")
    for part in module.modules() if runtime.compile else ():
        if isinstance(part, Backbone):
            part.compile_features()
    if runtime.checkpoint_activations:
        module.checkpoint_activations()
    refuse_a_single_cell(module)
    module.objective.backbone.require_pooling(find_pooling(config.pooling))  # not only when all is trained
    _refuse_too_short(module)
    try:
        return module, _trainer(config, runtime)
    except MisconfigurationException as error:
        raise FineSightError(f"--accelerator {runtime.accelerator} --devices {runtime.devices}: {error}") from error


def _load_state(module: TrainingModule, trainer: L.Trainer, state: dict[str, Any], file: Path) -> None:
    """Load a checkpoint; raise ``ValueError``, or what PyTorch raises, if it is not one of this module."""
    module.load_state_dict(state["module"])
    module.optimizer.load_state_dict(state["optimizer"])
    trainer.precision_plugin.load_state_dict(state["precision"])
    if int(module.steps) != step_of(file):
        raise ValueError(f"it is of step {int(module.steps)}")
    if not module.is_finite():
        raise ValueError("its weights are not numbers")
    for parameter, kept in module.optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} of the optimizer has the shape {tuple(value.shape)}")


def _what_is_kept(run: RunFolder) -> str:
    """Return how a run goes on that stopped because a file could not be written."""
    kept = checkpoints(run.checkpoints)
    since = f"continues from {kept[-1].name}, the last good checkpoint" if kept else "begins again: none was saved yet"
    return f"Training has stopped. Then the same command {since}."


def _refuse_too_short(module: TrainingModule) -> None:
    """Raise FineSightError if the run ends before the epoch at which projections are chosen."""
    rationale, steps, per_epoch = module.config.rationale, module.total_steps, module.steps_per_epoch
    if rationale is not None and rationale.keep != "all" and rationale.keep_from * per_epoch >= steps:
        raise FineSightError(
            f"Projections would be chosen at epoch {rationale.keep_from}, and the run ends after "
            f"{format_count(steps, 'step')}, with {per_epoch} an epoch: give more steps, or a smaller "
            "rationale.keep_from."
        )


@torch.no_grad()
def refuse_a_single_cell(module: TrainingModule) -> None:
    """Raise FineSightError if the map has one cell, where a rationale has nothing to learn."""
    if module.rationale is None:
        return
    backbone, side = module.objective.backbone, module.config.views.resolution
    backbone.eval()
    height, width = backbone(torch.zeros(1, 3, side, side)).shape[2:]
    backbone.train()
    if height * width == 1:
        raise FineSightError(
            f"At {side} px the map of {module.config.backbone.name} is 1×1: a rationale needs cells to choose among. "
            "Raise --resolution or lower --output-stride."
        )


def _trainer(config: TrainConfig, runtime: RuntimeConfig) -> L.Trainer:
    """Return a trainer that sees one long epoch: where an epoch of the data ends is known to Batches."""
    several = runtime.devices * runtime.nodes > 1
    has_gpu = runtime.accelerator != "cpu" and torch.cuda.is_available()
    best = "32" if not has_gpu else "bf16" if torch.cuda.is_bf16_supported() else "16"
    precision = PRECISIONS[best if runtime.precision == "auto" else runtime.precision]
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    return L.Trainer(
        accelerator=runtime.accelerator,
        devices=runtime.devices,
        num_nodes=runtime.nodes,
        strategy=DDPStrategy(broadcast_buffers=False) if several else "auto",
        precision=precision,
        max_epochs=1,
        accumulate_grad_batches=config.optim.accumulate_grad_batches,
        gradient_clip_val=config.optim.clip_grad_norm,
        logger=False,
        enable_checkpointing=False,
        callbacks=[StepHooks()],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _validator(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder,
    module: TrainingModule,
    cache: DecodedCache,
    held_out: NDArray[np.int64],
) -> Callable[[], dict[str, float]] | None:
    """Return a function that scores the held-out images and keeps the best encoder where the variant wants it.

    Returns None if there are no labels to score by.
    """
    labels = cache.source.labels
    if labels is None or len(held_out) < 2 or np.unique(labels[held_out], return_counts=True)[1].max() < 2:
        return None
    seen = encoder_cache(config, runtime, cache, held_out, show=runtime.progress)
    labels = seen.source.labels
    assert labels is not None
    best = max((value for _, value in metric_series(run.metrics_file).get("val_rank1", [])), default=-1.0)

    def validate() -> dict[str, float]:
        nonlocal best
        encoder = make_encoder(config, module)
        features = extract(encoder, seen, np.arange(len(seen)), (config.pooling,), progress=False)
        module.train()
        scores = retrieval(features.features[config.pooling], labels)
        if config.rationale is not None and config.rationale.checkpoint == "best" and scores.score("rank1") > best:
            best = scores.score("rank1")
            encoder.save(run.best_encoder)
            module.train()
        return {"val_rank1": scores.score("rank1"), "val_mAP": scores.score("mAP")}

    return validate


def is_main_process() -> bool:
    """Return whether this is the first process: Lightning sets these variables for the others."""
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"
