"""One training step: views, objective, rationale, loss. Lightning does the rest."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor

from finesight.config import TrainConfig
from finesight.data.views import apply_views, sample_params
from finesight.errors import FineSightError
from finesight.methods.moco import MoCo
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather, mean_over_ranks
from finesight.nn.queue import automatic_queue
from finesight.rationale.loss import Rationale
from finesight.training.batches import Batch, step_generator
from finesight.training.health import embedding_health
from finesight.training.optimizer import SgdAdam
from finesight.training.schedule import cosine_factor


class TrainingModule(L.LightningModule):
    """State of a run: ``objective`` (encoder, twin, queue), ``rationale`` and the number of finished ``steps``."""

    steps: Tensor

    def __init__(self, config: TrainConfig, *, images: int, steps_per_epoch: int, load_weights: bool = True) -> None:
        super().__init__()
        self.config, self.steps_per_epoch = config, steps_per_epoch
        torch.manual_seed(config.seed)
        backbone = Backbone(config.backbone, load=load_weights)
        queue = config.objective.queue
        size = automatic_queue(images, config.batch) if queue == "auto" else queue
        self.objective = MoCo(backbone, config.objective, size)
        self.rationale = Rationale(backbone.channels, config.rationale) if config.rationale else None
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.optimizer = self._make_optimizer()
        self.metrics: dict[str, float] = {}

    def training_step(self, batch: Batch, _: int) -> Tensor:
        generator = step_generator(self.config.seed, batch.step)
        drawn = [sample_params(self.config.views, batch.all_sizes, generator) for _ in range(self.objective.views)]
        views = [apply_views(self.config.views, batch.canvas, params[batch.share]) for params in drawn]
        outcome = self.objective(views, generator)
        loss = contrast = outcome.loss.mean()
        metrics = {"contrastive": contrast, **outcome.metrics}
        if self.rationale is not None:
            fitted = self.rationale(outcome)
            loss = self.rationale.config.lam * contrast + self.rationale.config.nu * fitted.loss
            metrics |= fitted.metrics
        self._outcome = outcome
        metrics = {**mean_over_ranks({"loss": loss, **metrics}), **embedding_health(gather(outcome.embedding))}
        self.metrics = {name: value.item() for name, value in metrics.items()}
        if not math.isfinite(self.metrics["loss"]):  # on every rank at once
            raise FineSightError(f"The loss is not a number at step {batch.step}.")
        total: Tensor = loss
        return total

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        optim = self.config.optim
        factor = cosine_factor(
            batch.step,
            self.steps_per_epoch,
            self.config.epochs,
            warmup_epochs=optim.warmup_epochs,
            every=optim.cosine,
        )
        held = batch.step < optim.hold_epochs * self.steps_per_epoch
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0 if held and group["backbone"] else group["base_lr"] * factor
        self.objective.before_step()

    def finish_step(self, batch: Batch) -> None:
        """After the optimiser step and before anything reads the state (see StepEnd)."""
        self.objective.after_step(self._outcome)
        del self._outcome
        self.steps.fill_(batch.step + 1)
        self.metrics["lr"] = self.optimizer.param_groups[1]["lr"]  # the heads', which never wait

    def is_finite(self) -> bool:
        """Whether every weight is a number."""
        values = (value for value in self.state_dict().values() if value.is_floating_point())
        return all(bool(torch.isfinite(value).all()) for value in values)

    def configure_optimizers(self) -> SgdAdam:
        return self.optimizer

    def _make_optimizer(self) -> SgdAdam:
        branch = list(self.rationale.parameters()) if self.rationale is not None else []
        own_step = self.rationale.config.branch_lr if self.rationale is not None else None
        backbone = [p for p in self.objective.backbone.parameters() if p.requires_grad]
        known = set(backbone)
        heads = [p for p in self.objective.parameters() if p.requires_grad and p not in known]
        optim = self.config.optim
        groups: list[dict[str, Any]] = [
            {"params": backbone, "base_lr": optim.lr * optim.backbone_share, "backbone": True},
            {"params": heads, "base_lr": optim.lr},
        ]
        if own_step is not None:
            groups.append({"params": branch, "base_lr": own_step, "adam": True})
        elif branch:
            groups.append({"params": branch, "base_lr": optim.lr})
        return SgdAdam(groups, optim.momentum, optim.weight_decay)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Only the pixels move; parameters of the views are drawn on the CPU so that every device sees the same."""
        return Batch(batch.step, batch.canvas.to(device, non_blocking=True), batch.all_sizes, batch.share)
