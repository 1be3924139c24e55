"""One training step: views, objective, rationale, loss. Lightning does the rest."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from finesight.errors import FineSightError
from finesight.methods.base import DatasetInfo, find_method
from finesight.nn.backbone import Backbone
from finesight.nn.distributed import gather, mean_over_ranks, world
from finesight.nn.norm import hold_norms, join_norms
from finesight.rationale.interaction import branch_pool
from finesight.rationale.loss import Rationale
from finesight.training.batches import Batch, network_randomness, step_generator
from finesight.training.config import TrainConfig
from finesight.training.groups import backbone_groups, split_decay
from finesight.training.health import embedding_health
from finesight.training.hooks import make_hook, rename_hook_state
from finesight.training.optimizer import GroupedOptimizer

# metrics that the module itself computes -> words for people
LOSS_METRICS = {"loss": "total loss", "objective": "the method's loss"}
RATE_METRICS = {"lr": "learning rate"}


class TrainingModule(L.LightningModule):
    """State of a run: ``objective`` (encoder, twin, queue …), ``rationale``, ``hook`` and the number of ``steps``."""

    steps: Tensor

    def __init__(
        self, config: TrainConfig, *, images: int, steps_per_epoch: int, classes: int = 0, load_weights: bool = True
    ) -> None:
        super().__init__()
        self.config, self.steps_per_epoch = config, steps_per_epoch
        self.total_steps = config.count_steps(steps_per_epoch)
        self.kinds = config.views.kinds()
        kind = find_method(config.method).find_objective()
        assert kind is not None
        torch.manual_seed(config.seed)
        backbone = Backbone(config.backbone, load=load_weights)
        data, pool, rationale = DatasetInfo(images, config.batch_size, classes), None, None
        if config.train_pooling != "average" and config.rationale is not None:
            rationale = Rationale(backbone.channels, config.rationale, signed=backbone.long_tokens)
            pool = branch_pool(config.train_pooling, backbone.channels, rationale.branch, config.rationale)
        self.objective = kind(backbone, config.objective, data, pool)
        if rationale is None and config.rationale is not None:  # last: all else begins as without one
            rationale = Rationale(backbone.channels, config.rationale, signed=backbone.long_tokens)
        self.rationale = rationale
        if kind.joint_norm:
            join_norms(self)
        if rationale is not None and rationale.config.gradient == "own":
            copies = [copy for copy, _ in self.objective.momentum_copies()]
            hold_norms(self.objective, without=[backbone, self.objective.pool, *copies])
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.hook = make_hook(config, images)
        self.register_load_state_dict_pre_hook(lambda _, state, *__: self._take_rows(state))  # type: ignore[no-untyped-call]
        self.optimizer = self._make_optimizer()
        self.metrics: dict[str, float] = {}

    def checkpoint_activations(self) -> None:
        """Keep less for the backward pass (see ``Backbone``); momentum copies have none."""
        self.objective.backbone.checkpoint_activations()

    def _take_rows(self, state: dict[str, Any]) -> None:
        rename_hook_state(state)
        self.hook.take_rows(state)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        generator = step_generator(self.config.seed, batch.step)
        kinds = self.kinds[: self.objective.views]
        views = self.hook.views(batch, kinds, generator, self.objective)
        waits = self._backbone_waits(batch.step)
        with (
            network_randomness(self.config.seed, batch),
            self.objective.backbone.without_graph() if waits else nullcontext(),
        ):
            output = self.objective(views, generator, batch.labels)
        loss = contrast = output.loss.mean()
        metrics = {"objective": contrast, **output.metrics}
        if self.rationale is not None:
            fitted = self.rationale(output, average_pooled=self.objective.average_pooled)
            loss = self.rationale.config.lam * contrast + self.rationale.config.nu * fitted.loss
            metrics |= fitted.metrics
        self._output = output
        metrics = {**mean_over_ranks({"loss": loss, **metrics}), **embedding_health(gather(output.embedding))}
        self.metrics = {name: value.item() for name, value in metrics.items()}
        if not math.isfinite(self.metrics["loss"]):  # on every rank at once
            raise FineSightError(f"The loss is not a number at step {batch.step}.")
        total: Tensor = loss
        return total

    def _backbone_waits(self, step: int) -> bool:
        """Return whether the gradient of the backbone's weights is not looked at after this step, by anything.

        The norm that ``clip_grad_norm`` limits, the search for infinities in half precision and DDP do look at it.
        """
        optim, device = self.config.optim, self.device.type
        halved = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
        if optim.clip_grad_norm is not None or halved or world()[1] > 1:
            return False
        last = step + optim.accumulate_grad_batches - 1  # or earlier: the step at which the optimizer uses it
        groups = self.optimizer.param_groups[: self._first_head]
        return all(last < group["freeze_epochs"] * self.steps_per_epoch for group in groups)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        optim = self.config.optim
        factor = cosine_factor(
            batch.step,
            self.steps_per_epoch,
            self.total_steps / self.steps_per_epoch,
            warmup_epochs=optim.warmup_epochs,
            every=optim.cosine,
            min_ratio=optim.min_lr_ratio,
        )
        for group in self.optimizer.param_groups:
            frozen = batch.step < group["freeze_epochs"] * self.steps_per_epoch
            group["lr"] = 0.0 if frozen else group["base_lr"] * (1.0 if group["constant"] else factor)
        self.objective.before_step(batch.step / self.total_steps)

    @property
    def epochs(self) -> int:
        """How many epochs the run has, the last of which may be cut short."""
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def finish_step(self, batch: Batch) -> None:
        """Update the state after the optimizer step, before anything reads it (see StepHooks)."""
        self.objective.after_step(self._output)
        del self._output
        self.steps.fill_(batch.step + 1)
        self.metrics["lr"] = self.optimizer.param_groups[self._first_head]["lr"]  # heads are never frozen

    def is_finite(self) -> bool:
        """Return whether every weight is a number."""
        values = (value for value in self.state_dict().values() if value.is_floating_point())
        return all(bool(torch.isfinite(value).all()) for value in values)

    def configure_optimizers(self) -> GroupedOptimizer:
        return self.optimizer

    def _make_optimizer(self) -> GroupedOptimizer:
        branch = list(self.rationale.parameters()) if self.rationale is not None else []
        branch_lr = self.rationale.config.branch_lr if self.rationale is not None else None
        optim = self.config.optim
        groups = backbone_groups(self.objective.backbone, optim)
        heads: list[dict[str, Any]] = []
        for head in self.objective.head_groups():
            own = {"freeze_epochs": head.freeze_epochs, "constant": head.constant}
            heads.append({"params": list(head.params), "optimizer": optim.optimizer, "base_lr": optim.lr, **own})
        self._first_head = len(groups)
        groups += split_decay(heads)
        if branch_lr is not None:
            groups.append(
                {"params": branch, "optimizer": "adam", "base_lr": branch_lr, "clip_grad_norm_per_tensor": None}
            )
        elif branch:
            groups += split_decay([{"params": branch, "optimizer": optim.optimizer, "base_lr": optim.lr}])
        return GroupedOptimizer(
            groups,
            optim.momentum,
            optim.weight_decay,
            optim.bias_lr_ratio,
            optim.clip_grad_norm_per_tensor,
            decay_biases=optim.decay_biases,
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move pixels and labels. Sizes stay: parameters of the views are drawn on the CPU, alike for every device."""
        labels = None if batch.labels is None else batch.labels.to(device, non_blocking=True)
        extra = self.hook.to_device(batch.extra, device)
        return replace(batch, canvas=batch.canvas.to(device, non_blocking=True), labels=labels, extra=extra)


def cosine_factor(
    step: int,
    steps_per_epoch: int,
    epochs: float,
    *,
    warmup_epochs: float = 0.0,
    every: Literal["epoch", "step"] = "epoch",
    min_ratio: float = 0.0,
) -> float:
    """Return the factor of the base rate: a linear warm-up, then half a cosine down to ``min_ratio`` at ``epochs``."""
    progress = step / steps_per_epoch  # in epochs
    if progress < warmup_epochs:
        return (step + 1) / (warmup_epochs * steps_per_epoch + 1)
    if every == "epoch":
        progress = math.floor(progress)
    share = (progress - warmup_epochs) / max(epochs - warmup_epochs, 1e-12)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share))))
