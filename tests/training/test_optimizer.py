import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finesight.training.optimizer import GroupedOptimizer
from reference.optimizer import adam as adam_reference
from reference.optimizer import adamw as adamw_reference
from reference.optimizer import lars as lars_reference
from reference.optimizer import sgd as sgd_reference
from reference.optimizer import shortened

MOMENTUM, DECAY, STEPS = 0.9, 1e-2, 8
SHAPES = [(3, 4), (5,), (2, 3, 1, 1)]


def weights(seed: int, dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    return [
        torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) * 10 ** (step % 3 - 1)
        for shape in SHAPES
    ]


def rate(step: int) -> float:
    return 0.1 / (step + 1)


def both_kinds(encoder: list[nn.Parameter], branch: list[nn.Parameter]) -> GroupedOptimizer:
    groups: list[dict[str, Any]] = [
        {"params": encoder, "base_lr": 0.1},
        {"params": branch, "base_lr": 0.1, "optimizer": "adam"},
    ]
    return GroupedOptimizer(groups, MOMENTUM, DECAY)


def advance(optimizer: torch.optim.Optimizer, step: int, dtype: torch.dtype = torch.float64) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
        for parameter, gradient in zip(group["params"], gradients(step, dtype), strict=True):
            parameter.grad = gradient.clone()
    optimizer.step()


def test_both_kinds_against_numpy() -> None:
    encoder, branch = weights(0), weights(1)
    begun = [p.detach().numpy().copy() for p in encoder + branch]
    ours = both_kinds(encoder, branch)
    for step in range(STEPS):
        advance(ours, step)
    rates = [rate(step) for step in range(STEPS)]
    for i in range(len(SHAPES)):
        pushed = [gradients(step)[i].numpy() for step in range(STEPS)]
        expected = sgd_reference(begun[i], pushed, rates, MOMENTUM, DECAY)
        np.testing.assert_allclose(encoder[i].detach().numpy(), expected, rtol=1e-11)
        expected = adam_reference(begun[len(SHAPES) + i], pushed, rates)
        np.testing.assert_allclose(branch[i].detach().numpy(), expected, rtol=1e-11)


@pytest.mark.parametrize("decays", [True, False])
def test_biases_and_norms_decay_or_not(decays: bool) -> None:
    encoder = weights(0)
    begun = [p.detach().numpy().copy() for p in encoder]
    ours = GroupedOptimizer([{"params": encoder, "base_lr": 0.1}], MOMENTUM, DECAY, decay_biases=decays)
    for step in range(STEPS):
        advance(ours, step)
    rates = [rate(step) for step in range(STEPS)]
    for i, shape in enumerate(SHAPES):
        pushed = [gradients(step)[i].numpy() for step in range(STEPS)]
        decay = DECAY if decays or len(shape) > 1 else 0.0
        np.testing.assert_allclose(
            encoder[i].detach().numpy(), sgd_reference(begun[i], pushed, rates, MOMENTUM, decay), rtol=1e-11
        )


def test_a_state_of_before_goes_on_as_it_began() -> None:
    """Its groups do not say whether biases decay: they did."""
    old = GroupedOptimizer([{"params": weights(0)}], MOMENTUM, DECAY).state_dict()
    for group in old["param_groups"]:
        del group["decay_biases"]
    now = GroupedOptimizer([{"params": weights(0)}], MOMENTUM, DECAY, decay_biases=False)
    now.load_state_dict(old)
    assert [group["decay_biases"] for group in now.param_groups] == [True]
    new = GroupedOptimizer([{"params": weights(0)}], MOMENTUM, DECAY, decay_biases=False)
    now.load_state_dict(new.state_dict())
    assert [group["decay_biases"] for group in now.param_groups] == [False]


@pytest.mark.parametrize("stop", [1, 4])
def test_continues_bit_for_bit_from_a_saved_state(stop: int) -> None:
    encoder, branch = weights(0, torch.float32), weights(1, torch.float32)
    ours = both_kinds(encoder, branch)
    for step in range(stop):
        advance(ours, step, torch.float32)
    saved = io.BytesIO()
    torch.save({"optimizer": ours.state_dict(), "weights": [p.detach() for p in encoder + branch]}, saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    restored = [nn.Parameter(w) for w in state["weights"]]
    again = both_kinds(restored[: len(SHAPES)], restored[len(SHAPES) :])
    again.load_state_dict(state["optimizer"])
    for step in range(stop, STEPS):
        advance(ours, step, torch.float32)
        advance(again, step, torch.float32)
    for mine, theirs in zip(encoder + branch, restored, strict=True):
        assert torch.equal(mine, theirs)


def test_parameters_without_gradient_are_left_alone() -> None:
    encoder, branch = weights(0), weights(1)
    ours = both_kinds(encoder, branch)
    encoder[0].grad, branch[1].grad = torch.ones_like(encoder[0]), torch.ones_like(branch[1])
    for group in ours.param_groups:
        group["lr"] = 0.1
    before = [p.detach().clone() for p in encoder + branch]
    ours.step()
    moved = [not torch.equal(p, was) for p, was in zip(encoder + branch, before, strict=True)]
    assert moved == [True, False, False, False, True, False]
    ours.zero_grad()
    ours.step()


def test_nothing_moves_before_a_rate_is_set_and_the_closure_is_run_with_gradients() -> None:
    encoder, branch = weights(0), weights(1)
    ours = both_kinds(encoder, branch)
    before = [p.detach().clone() for p in encoder + branch]

    def closure() -> float:
        loss = sum(p.square().sum() for p in encoder + branch)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.item()

    expected = sum(float(p.square().sum()) for p in before)
    assert ours.step(closure) == pytest.approx(expected)
    assert all(torch.equal(p, was) for p, was in zip(encoder + branch, before, strict=True))
    assert all(p.grad is not None for p in encoder + branch)


def test_a_group_at_rate_zero_neither_moves_nor_gathers_momentum() -> None:
    waiting, moving = weights(0), weights(1)
    optimizer = both_kinds(waiting, moving)
    start = copy.deepcopy(waiting)
    for parameter, gradient in zip(waiting + moving, gradients(0) + gradients(1), strict=True):
        parameter.grad = gradient
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.0, 0.1
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(waiting, start, strict=True))
    assert not any(optimizer.state[p] for p in waiting)
    assert all(optimizer.state[p] for p in moving)


# --- LARS -------------------------------------------------------------------------------------------------------------

SHARE = 0.3


def adaptive(params: list[nn.Parameter], decay: float = DECAY, share: float = SHARE) -> GroupedOptimizer:
    return GroupedOptimizer([{"params": params, "optimizer": "lars", "base_lr": 0.1}], MOMENTUM, decay, share)


@pytest.mark.parametrize("share", [1.0, SHARE, 0.0])
@pytest.mark.parametrize("decay", [DECAY, 0.0])
def test_lars_against_numbers_one_by_one(decay: float, share: float) -> None:
    params = weights(0)
    begun = [p.detach().numpy().copy() for p in params]
    ours = adaptive(params, decay, share)
    for step in range(STEPS):
        advance(ours, step)
    rates = [rate(step) for step in range(STEPS)]
    for i, parameter in enumerate(params):
        pushed = [gradients(step)[i].numpy() for step in range(STEPS)]
        expected = lars_reference(begun[i], pushed, rates, MOMENTUM, decay, share)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)


def test_lars_steps_plainly_where_a_ratio_would_be_nothing_or_no_number() -> None:
    """From zero weights a share of their length leads nowhere; without a gradient there is nothing to divide by."""
    new, still = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64)), weights(0)[0]
    before, pushed = still.detach().clone(), gradients(1)[0]
    ours = adaptive([new, still], decay=0.0)
    ours.param_groups[0]["lr"] = 0.5
    new.grad, still.grad = pushed.clone(), torch.zeros_like(still)
    ours.step()
    torch.testing.assert_close(new.detach(), -0.5 * pushed, rtol=1e-12, atol=0)
    assert torch.equal(still, before)
    new.grad = torch.zeros_like(new)
    ours.step()
    torch.testing.assert_close(new.detach(), -0.5 * (1 + MOMENTUM) * pushed, rtol=1e-12, atol=0)


# --- AdamW ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_adamw_against_numpy_and_torch(decay: float) -> None:
    params, others = weights(0), weights(0)
    begun = [p.detach().numpy().copy() for p in params]
    ours = GroupedOptimizer([{"params": params, "optimizer": "adamw"}], MOMENTUM, decay)
    theirs = torch.optim.AdamW(others, weight_decay=decay)
    for step in range(STEPS):
        advance(ours, step)
        advance(theirs, step)
    rates = [rate(step) for step in range(STEPS)]
    for i, (parameter, other) in enumerate(zip(params, others, strict=True)):
        expected = adamw_reference(begun[i], [gradients(step)[i].numpy() for step in range(STEPS)], rates, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-11)
        torch.testing.assert_close(parameter, other, rtol=1e-11, atol=0)


# --- gradients that are too long --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e6])
def test_each_gradient_is_shortened_on_its_own(length: float) -> None:
    start = [w.detach().numpy() for w in weights(0)]
    encoder, branch = weights(0), weights(1)
    groups: list[dict[str, Any]] = [
        {"params": encoder},
        {"params": branch, "optimizer": "adam", "clip_grad_norm_per_tensor": None},
    ]
    ours, free = GroupedOptimizer(groups, MOMENTUM, DECAY, clip_grad_norm_per_tensor=length), weights(1)
    alone = GroupedOptimizer([{"params": free, "optimizer": "adam"}], MOMENTUM, DECAY)
    for step in range(STEPS):
        advance(ours, step)
        advance(alone, step)
    for i, weight in enumerate(encoder):
        steps = [shortened(gradients(step)[i].numpy(), length) for step in range(STEPS)]
        expected = sgd_reference(start[i], steps, [rate(step) for step in range(STEPS)], MOMENTUM, DECAY)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(branch, free, strict=True))


def test_no_gradient_at_all_stays_none() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = GroupedOptimizer([{"params": [parameter], "lr": 1.0}], 0.0, 0.0, clip_grad_norm_per_tensor=1.0)
    parameter.grad = torch.zeros(2, 2)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(2, 2))
