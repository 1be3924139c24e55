"""A run with frozen stages continues bit for bit, whose norms are folded while it trains."""

from __future__ import annotations

import torch

from finesight.training.config import build_config
from finesight.training.module import TrainingModule
from small import SMALL


def make() -> TrainingModule:
    settings = {**SMALL, "data": "nowhere", "backbone.freeze": 3, "backbone.frozen_norm": True}
    return TrainingModule(build_config(settings), images=40, steps_per_epoch=5).train()


def step(module: TrainingModule, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    views = [torch.randn(8, 3, 32, 32, generator=generator) for _ in range(2)]
    for group in module.optimizer.param_groups:
        group["lr"] = 0.05
    module.objective.before_step(0.1)
    output = module.objective(views, generator)
    loss = output.loss.mean()
    module.optimizer.zero_grad()
    loss.backward()
    module.optimizer.step()
    module.objective.after_step(output)
    return loss.item()


def test_a_run_continues_bit_for_bit() -> None:
    whole, begun = make(), make()
    keys = list(whole.state_dict())
    losses = [step(whole, number) for number in range(6)]
    assert [step(begun, number) for number in range(3)] == losses[:3]
    assert len(set(losses)) == 6
    continued = make()
    continued.load_state_dict(begun.state_dict())
    continued.optimizer.load_state_dict(begun.optimizer.state_dict())
    assert [step(continued, number) for number in range(3, 6)] == losses[3:]
    assert list(whole.state_dict()) == keys
    for name, value in continued.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
