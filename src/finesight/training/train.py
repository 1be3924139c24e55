"""From a configuration to a finished run folder. Calling it again continues where it stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError, Interrupted
from finesight.io.atomic import WriteError, write_atomic
from finesight.io.console import console, format_count
from finesight.io.signals import stoppable
from finesight.methods.base import find_method
from finesight.nn.distributed import from_first
from finesight.nn.half_precision import require_half_precision, uses_half_precision
from finesight.rationale.loss import RATIONALE_METRICS
from finesight.training.batches import Batches
from finesight.training.begin import begin_or_continue
from finesight.training.callbacks import Checkpointer, Journal, Progress
from finesight.training.checkpoints import checkpoints
from finesight.training.cluster import is_main_process, joined, launched
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.health import HEALTH_METRICS
from finesight.training.loggers import open_loggers, require_loggers
from finesight.training.metrics_log import MetricsLog
from finesight.training.module import LOSS_METRICS, RATE_METRICS
from finesight.training.parts import batch_parts
from finesight.training.progress import RunProgress
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages, path_hashes, require_same_images
from finesight.training.save_encoder import save_encoder, save_frozen
from finesight.training.train_images import prepare_data
from finesight.training.validation import VALIDATION_METRICS, Validation, can_validate


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
    config, runtime = config.with_absolute_paths(), launched(runtime or RuntimeConfig())
    require_loggers(runtime.loggers)
    run = RunFolder(out)
    main = is_main_process()
    console.quiet = not main
    progress = RunProgress(run.progress if main else None)
    with joined(runtime), run.locked() if main else contextlib.nullcontext():
        if main:
            run.enter(config, restart=restart)
            if plan is not None and not run.has_begun:
                write_atomic(run.plan, json.dumps(plan, indent=1) + "\n")
        if from_first(lambda: run.is_finished):  # the folder need not be on other machines
            console.print(f"{out} is finished: nothing to do. (--restart begins anew.)")
            return run
        with progress.ending(), stoppable(progress.stopped) if main else contextlib.nullcontext():
            if main and uses_half_precision(runtime.precision, runtime.accelerator):
                progress.tell("preparing", "trying half precision", 0, 0)
                require_half_precision()
            known = from_first(lambda: RunImages.read(run.images) if checkpoints(run.checkpoints) else None)
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
    require_same_images(cache)
    hashes = path_hashes(cache.source)[images]
    module, trainer, loaded = begin_or_continue(config, runtime, run, cache, len(images), hashes, known)
    parts = batch_parts(config, runtime, module.hook, cache.source, images)
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
        parts=parts,
    )
    rows = torch.from_numpy(hashes.view(np.int64)) if module.hook.per_image else None
    known_rows = None if loaded is None else loaded.get("rows")
    saver = Checkpointer(run, runtime.checkpoint_minutes, batches.total, rows, known_rows)
    callbacks: list[L.Callback] = [saver]
    module.hook.on_fit_start(cache, images, runtime.cache_dir, runtime.progress and main)
    log = None
    if can_validate(cache, held_out):
        share = slice(trainer.global_rank, None, processes)
        callbacks.insert(0, Validation(config, runtime, run, cache, held_out, progress, share))
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
        events = run.root / "tensorboard" if "tensorboard" in runtime.loggers else None
        loggers = open_loggers(runtime.loggers, run, config)
        log = MetricsLog(run.metrics_file, names, events, start, loggers)
        callbacks.insert(-1, Journal(log, runtime.log_every))  # a saved step is a logged one
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
            log.close("success" if int(module.steps) >= batches.total else "failed")
    if saver.interrupted is not None and main:
        steps = f"{int(module.steps)} of {format_count(batches.total, 'step')}"
        raise Interrupted(saver.interrupted, f"Stopped after {steps}; all is saved. The same command continues.")
    if main:
        progress.tell("saving", "saving the encoder")
        save_encoder(config, run, module)


def _what_is_kept(run: RunFolder) -> str:
    """Return how a run goes on that stopped because a file could not be written."""
    kept = checkpoints(run.checkpoints)
    since = f"continues from {kept[-1].name}, the last good checkpoint" if kept else "begins again: none was saved yet"
    return f"Training has stopped. Then the same command {since}."
