"""The module and the trainer with which a run begins, or goes on from the newest checkpoint that fits."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError
from finesight.io.console import console, format_count
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import from_first, gather_objects
from finesight.nn.poolings import find_pooling
from finesight.training.callbacks import StepHooks
from finesight.training.checkpoints import (
    DoesNotFit,
    checkpoints,
    must_fit,
    none_usable,
    readable_checkpoints,
    step_of,
)
from finesight.training.cluster import find_launch
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages, carry_rows, restored_config, steps_per_epoch

PRECISIONS: dict[str, Literal["32-true", "16-mixed", "bf16-mixed"]] = {
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}  # our names -> Lightning's


def begin_or_continue(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder,
    cache: DecodedCache,
    images: int,
    hashes: NDArray[np.uint64],
    known: RunImages | None,
) -> tuple[TrainingModule, L.Trainer, dict[str, Any] | None]:
    """Return the module as of the newest checkpoint that fits, its trainer and that checkpoint; None for a new run.

    All processes of a launcher must call it. The first one alone reads the run folder. A checkpoint that does not fit
    on one of them is used by none.
    """
    now = images // config.batch_size
    for file, state in _told_by_the_first(run.checkpoints):
        per_epoch = from_first(lambda: steps_per_epoch(run, now)) if known is None else known.steps_per_epoch
        built, misfit = None, ""
        try:
            with must_fit(file):
                sized, learned = restored_config(config, state["module"])
            _require_classes(run, cache, learned)
            built = _build(sized, runtime, cache, images, per_epoch)
            with must_fit(file):
                carry_rows(built[0].hook, state["module"], state.get("images"), hashes)
                _load_state(*built, state, file)
        except DoesNotFit as error:
            misfit = str(error)
        misfits = [text for text in gather_objects(misfit) if text]
        if built is not None and not misfits:
            return *built, state
        console.print(f"{misfits[0]}: the one before it is used.", markup=False)
    if from_first(lambda: bool(checkpoints(run.checkpoints))):
        raise none_usable(run.checkpoints)
    return *_build(config, runtime, cache, images, now), None


def _told_by_the_first(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield on every process the checkpoints that the first one can read; all must ask for the same number of them."""
    found = readable_checkpoints(folder)
    while (told := from_first(lambda: next(found, None))) is not None:
        yield told


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


def _ddp() -> DDPStrategy:
    launch = find_launch()
    return DDPStrategy(broadcast_buffers=False, cluster_environment=None if launch is None else launch.environment)


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
        strategy=_ddp() if several else "auto",
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
