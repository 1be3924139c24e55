"""The first steps of every method on some rows of a batch, with all that can be compared between processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from finesight.methods.base import OBJECTIVES
from finesight.nn.distributed import mean_over_ranks, world
from finesight.paper.hooks.objects import needs_masks
from finesight.rationale.config import VARIANTS
from finesight.training.batches import Batch, step_generator
from finesight.training.module import TrainingModule
from ranks import RANKS
from small import CLASSES, small_module

EACH, STEPS = 4, 2
METHODS = sorted(OBJECTIVES.keys() - {"moco"})  # whose norms are each rank's own on purpose: see test_distributed.py
# LEWEL's keys, as MoCo's, are normalized by shuffled halves: one rank sees one of them, one process both in turn.
KEYS = ("objective.key_backbone.", "objective.key_head.")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
Step = dict[str, Any]


class Losses(nn.Module):
    """The loss of a step as ``TrainingModule.training_step`` has it, from views of any precision."""

    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, views: list[Tensor], generator: torch.Generator, labels: Tensor) -> Tensor:
        self.outcome = self.module.objective(views, generator, labels)
        assert self.module.rationale is not None
        self.fitted = self.module.rationale(self.outcome, average_pooled=self.module.objective.average_pooled)
        loss: Tensor = self.outcome.loss.mean() + self.fitted.loss
        return loss


@torch.no_grad()
def scatter(module: nn.Module) -> None:
    """Biases and scales of no special value: some begin at zero and keep the gradient from whole blocks."""
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        if p.ndim == 1:
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=0.3)


def views_of(side: int, generator: torch.Generator, *, masked: bool) -> Tensor:
    """Noise; where its objects are, if that is asked for, in a fourth channel from 0 to 1."""
    views = torch.randn(RANKS * EACH, 3 + masked, side, side, generator=generator, dtype=torch.float64)
    views[:, 3:].sigmoid_()
    return views


def steps_of(method: str, rows: slice) -> list[Step]:
    """What happens in the first steps of training on these rows of the joined batch."""
    # norms of each rank's own half would have to differ; LEWEL joins those of its queries only
    frozen = not OBJECTIVES[method].joint_norm and method != "lewel"
    settings = {"rationale": True, "backbone.frozen_norm": frozen, "batch_size": RANKS * EACH}
    module = small_module(method, steps_per_epoch=1, **settings).double()
    assert module.rationale is not None
    assert module.rationale.config == VARIANTS["finesight"]
    scatter(module)
    losses = Losses(module)
    wrapped = DistributedDataParallel(losses, broadcast_buffers=False) if world()[1] > 1 else losses
    steps = []
    for step in range(STEPS):
        generator = step_generator(0, step)
        sides = [kind.resolution for kind in module.kinds[: module.objective.views]]
        views = [views_of(side, generator, masked=needs_masks(module.objective))[rows] for side in sides]
        labels = (torch.arange(RANKS * EACH) % CLASSES)[rows]
        module.on_train_batch_start(Batch(step, torch.empty(0), torch.empty(0), rows), 0)
        loss = wrapped(views, generator, labels)
        module.optimizer.zero_grad()
        loss.backward()
        gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
        module.optimizer.step()
        outcome = losses.outcome
        module.objective.after_step(outcome)
        named = {"loss": loss, "objective": outcome.loss.mean(), **outcome.metrics, **losses.fitted.metrics}
        scores = {name: value.detach().double() for name, value in named.items()}
        own = {"loss": outcome.loss, "embedding": outcome.embedding, "target": outcome.target}
        steps.append(
            {
                "means": mean_over_ranks(scores),
                "rows": {name: value.detach() for name, value in own.items()},
                "gradcam": losses.fitted.target,
                "gradients": {name: None if g is None else g.clone() for name, g in gradients.items()},
                "state": {name: value.clone() for name, value in module.state_dict().items()},
            }
        )
    return steps


def every_method(rank: int) -> dict[str, list[Step]]:
    return {method: steps_of(method, slice(rank * EACH, (rank + 1) * EACH)) for method in METHODS}


def same(found: Tensor, expected: Tensor, what: str) -> None:
    """To rounding in float64. What is far below the largest of its tensor, or a bias before a norm, is all rounding."""
    atol = 1e-13 + 1e-11 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=atol, msg=lambda text: f"{what}: {text}")
