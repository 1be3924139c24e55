import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finesight.training.optimizer import GroupedOptimizer
from reference.optimizer import adam as adam_reference
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


def test_both_kinds_step_by_step_against_pytorch() -> None:
    encoder, branch = weights(0), weights(1)
    plain, other = copy.deepcopy(encoder), copy.deepcopy(branch)
    ours = both_kinds(encoder, branch)
    sgd = torch.optim.SGD(plain, lr=0.1, momentum=MOMENTUM, weight_decay=DECAY)
    adam = torch.optim.Adam(other, lr=0.1)
    for step in range(STEPS):
        for optimizer in (ours, sgd, adam):
            advance(optimizer, step)
        for mine, theirs in zip(encoder + branch, plain + other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


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


def test_a_lost_state_would_be_noticed() -> None:
    """The test above compares something: without the state the continuation differs."""
    encoder, branch = weights(0), weights(1)
    ours = both_kinds(encoder, branch)
    advance(ours, 0)
    copies = copy.deepcopy([encoder, branch])
    fresh = both_kinds(*copies)
    advance(ours, 1)
    advance(fresh, 1)
    assert not torch.allclose(encoder[0], copies[0][0])
    assert not torch.allclose(branch[0], copies[1][0])


def test_no_decay_for_adam_and_decay_for_sgd() -> None:
    encoder, branch = weights(0), weights(1)
    ours = both_kinds(encoder, branch)
    before = [p.detach().clone() for p in encoder + branch]
    for group in ours.param_groups:
        group["lr"] = 0.5
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    ours.step()
    for parameter, was in zip(encoder, before, strict=False):
        torch.testing.assert_close(parameter, was * (1 - 0.5 * DECAY), rtol=1e-12, atol=0)
    for parameter, was in zip(branch, before[len(SHAPES) :], strict=True):
        assert torch.equal(parameter, was)


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


def test_lars_steps_a_thousandth_of_a_matrix_whatever_the_gradients_size() -> None:
    for size in (1e-6, 1.0, 1e6):
        params = weights(0)
        before = [p.detach().clone() for p in params]
        ours = adaptive(params, decay=0.0)
        ours.param_groups[0]["lr"] = 0.5
        for parameter, gradient in zip(params, gradients(0), strict=True):
            parameter.grad = size * gradient
        ours.step()
        lengths = [float((p.detach() - was).norm() / was.norm()) for p, was in zip(params, before, strict=True)]
        assert lengths[0] == pytest.approx(0.5e-3)
        assert lengths[2] == pytest.approx(0.5e-3)
        torch.testing.assert_close(params[1], before[1] - 0.5 * SHARE * size * gradients(0)[1], rtol=1e-12, atol=0)


def test_lars_decays_matrices_only() -> None:
    """With no other gradient the decay is all there is, and a matrix shrinks by the trust."""
    params = weights(0)
    before = [p.detach().clone() for p in params]
    ours = adaptive(params)
    ours.param_groups[0]["lr"] = 0.5
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    ours.step()
    torch.testing.assert_close(params[0], before[0] * (1 - 0.5e-3), rtol=1e-12, atol=0)
    assert torch.equal(params[1], before[1])
    torch.testing.assert_close(params[2], before[2] * (1 - 0.5e-3), rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("stop", [1, 4])
def test_lars_continues_bit_for_bit_from_a_saved_state(stop: int) -> None:
    params = weights(0, torch.float32)
    ours = adaptive(params)
    for step in range(stop):
        advance(ours, step, torch.float32)
    saved = io.BytesIO()
    torch.save({"optimizer": ours.state_dict(), "weights": [p.detach() for p in params]}, saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    restored, lost = ([nn.Parameter(w.clone()) for w in state["weights"]] for _ in range(2))
    again, fresh = adaptive(restored, decay=0.5, share=0.9), adaptive(lost)
    again.load_state_dict(state["optimizer"])
    for step in range(stop, STEPS):
        for optimizer in (ours, again, fresh):
            advance(optimizer, step, torch.float32)
    for mine, theirs, other in zip(params, restored, lost, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, other), "without the state it would have gone elsewhere"


def test_lars_leaves_parameters_without_gradient_alone() -> None:
    params = weights(0)
    before = [p.detach().clone() for p in params]
    ours = adaptive(params)
    ours.param_groups[0]["lr"] = 0.1
    for with_gradient in (0, 1):
        ours.zero_grad()
        params[with_gradient].grad = torch.ones_like(params[with_gradient])
        ours.step()
        moved = [not torch.equal(p, was) for p, was in zip(params, before, strict=True)]
        assert moved == [True, with_gradient == 1, False]


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
