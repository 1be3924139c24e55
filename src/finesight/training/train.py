"""From a configuration to a finished run folder. Calling it again continues where it stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, cache_side, open_cache, write_skipped
from finesight.data.sources import open_source
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.retrieval import retrieval
from finesight.features.extract import extract
from finesight.io.console import console
from finesight.methods.base import find_method
from finesight.rationale.loss import RATIONALE_METRICS
from finesight.training.batches import Batches
from finesight.training.callbacks import Checkpointer, Journal, ProgressBar, StepHooks
from finesight.training.checkpoints import checkpoints, load_checkpoint
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.health import HEALTH_METRICS
from finesight.training.metrics_log import MetricsLog, metric_series
from finesight.training.module import LOSS_METRICS, RATE_METRICS, TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import make_encoder, save_encoder, save_frozen

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


def train(config: TrainConfig, out: Path, runtime: RuntimeConfig | None = None, *, restart: bool = False) -> RunFolder:
    """Train as configured into the run folder ``out`` and return it; the same call continues an unfinished run.

    Raises FineSightError if the data or the settings cannot be used or the weights become not-a-number, and
    Interrupted if the run was stopped by a signal.
    """
    config, runtime = config.with_absolute_paths(), runtime or RuntimeConfig()
    run = RunFolder(out)
    main = is_main_process()
    console.quiet = not main
    with run.locked() if main else contextlib.nullcontext():
        if main:
            run.enter(config, restart=restart)
        if (run.encoder / "encoder.json").exists():
            console.print(f"{out} is finished: nothing to do. (--restart begins anew.)")
            return run
        cache, images, held_out = prepare_data(config, runtime, run if main else None)
        if find_method(config.method).objective is not None:
            _fit(config, runtime, run, cache, images, held_out)
        elif main:
            save_frozen(config, run)
    return run


def encoder_cache(
    config: TrainConfig, runtime: RuntimeConfig, cache: DecodedCache, images: NDArray[np.int64]
) -> DecodedCache:
    """Return these images of the training cache, decoded at the resolution of the encoder."""
    return open_cache(
        cache.source.select(images),
        cache_side(config.encoder_resolution),
        cache_dir=runtime.cache_dir,
        workers=runtime.workers,
        progress=False,
    )


def prepare_data(
    config: TrainConfig, runtime: RuntimeConfig, run: RunFolder | None = None
) -> tuple[DecodedCache, NDArray[np.int64], NDArray[np.int64]]:
    """Return the decoded train images, which of them are trained on, and which are held out for validation."""
    source = open_source(config.data)
    if run is not None:
        console.print(source.describe())
    if config.limit_classes is not None:
        source = source.first_classes(config.limit_classes)
    source = source.split("train")
    if config.limit_images is not None and config.limit_images < len(source):
        picked = np.random.default_rng([config.seed, 1]).permutation(len(source))[: config.limit_images]
        source = source.select(np.sort(picked))
    cache = open_cache(
        source,
        cache_side(config.views.resolution),
        cache_dir=runtime.cache_dir,
        workers=runtime.workers,
        progress=runtime.progress and run is not None,
    )
    if run is not None:
        write_skipped(cache.skipped, run.skipped)
        if cache.skipped:
            console.print(f"{len(cache.skipped)} files were skipped; {run.skipped} says which and why.")
    images, held_out = hold_out(len(cache), config)
    if cache.source.labels is None:
        images, held_out = np.arange(len(cache)), held_out[:0]
    objective = find_method(config.method).find_objective()
    if objective is None:
        return cache, images, held_out
    if objective.labeled:
        labels = cache.source.labels
        if labels is None or (labels < 0).all():
            raise FineSightError(
                f"Method {config.method!r} learns from labels and {source.root} has none. Give a folder with one "
                "sub-folder per class, or a list with a label column."
            )
        images = images[labels[images] >= 0]
    if len(images) < config.batch_size:
        raise FineSightError(
            f"{source.root} has {len(images)} readable images to train on ({len(cache.skipped)} skipped, "
            f"{len(held_out)} held out for validation), fewer than one batch of {config.batch_size}: "
            f"add images or lower --batch-size to {max(2, len(images))} or less."
        )
    return cache, images, held_out


def hold_out(count: int, config: TrainConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose a random part for validation without using labels. Returns (kept, held out), both in order."""
    size = min(config.validation.max_images, round(count * config.validation.fraction))
    order = np.random.default_rng([config.seed, 2]).permutation(count)
    return np.sort(order[size:]), np.sort(order[:size])


def _fit(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder,
    cache: DecodedCache,
    images: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> None:
    processes = runtime.devices * runtime.nodes
    if config.batch_size % processes:
        raise FineSightError(
            f"--batch-size {config.batch_size} cannot be shared by {processes} devices: use a multiple of it."
        )
    per_epoch = len(images) // config.batch_size
    classes = len(cache.source.classes)
    module = TrainingModule(config, images=len(images), steps_per_epoch=per_epoch, classes=classes)
    _refuse_a_single_cell(module)
    try:
        trainer = _trainer(config, runtime)
    except MisconfigurationException as error:
        raise FineSightError(f"--accelerator {runtime.accelerator} --devices {runtime.devices}: {error}") from error
    start = 0
    if (loaded := load_checkpoint(run.checkpoints)) is not None:
        state = loaded[1]
        module.load_state_dict(state["module"])
        module.optimizer.load_state_dict(state["optimizer"])
        trainer.precision_plugin.load_state_dict(state["precision"])
        start = int(module.steps)
    main = trainer.is_global_zero
    batches = Batches(
        cache,
        images,
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=config.seed,
        start=start,
        rank=trainer.global_rank,
        processes=processes,
        hook=module.hook,
    )
    saver = Checkpointer(run, runtime.checkpoint_minutes, batches.total)
    callbacks: list[L.Callback] = [saver]
    module.hook.on_fit_start(cache, images, runtime.cache_dir, runtime.progress and main)
    log = None
    if main:
        console.print(f"{module.objective.backbone.load_report}; {len(images)} images, {batches.total} steps.")
        if start:
            console.print(f"Continuing at step {start} of {batches.total}.")
        rationale = RATIONALE_METRICS if config.rationale else ()
        own = (*LOSS_METRICS, *HEALTH_METRICS, *RATE_METRICS)
        names = [*own, *module.objective.metrics, *rationale, *VALIDATION_METRICS]
        log = MetricsLog(run.metrics_file, names, run.root / "tensorboard", start)
        validate = _validator(config, runtime, run, module, cache, held_out)
        every = config.validation.every_n_epochs
        journal = Journal(log, log_every=runtime.log_every, validate=validate, validate_every=every)
        callbacks.insert(0, journal)  # a saved step is a logged one
        if runtime.progress:
            callbacks.append(ProgressBar(batches.total, start, config.batch_size))
    trainer.callbacks += callbacks  # type: ignore[attr-defined]
    try:
        if len(batches):
            trainer.fit(module, batches)
        if not module.is_finite():
            raise FineSightError("The weights are not numbers after the last step.")
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
        steps = f"{int(module.steps)} of {batches.total} steps"
        raise Interrupted(saver.interrupted, f"Stopped after {steps}; all is saved. The same command continues.")
    if main:
        save_encoder(config, run, module)


@torch.no_grad()
def _refuse_a_single_cell(module: TrainingModule) -> None:
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
    seen = encoder_cache(config, runtime, cache, held_out)
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
