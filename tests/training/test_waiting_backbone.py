"""While the backbone waits (``optim.freeze_epochs``) its weights get no gradient, and no bit of a run changes by that.

The reference is a run whose ``clip_grad_norm`` is so large that nothing is ever clipped: its norm needs all gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from finesight.methods.base import METHODS
from finesight.training.module import TrainingModule
from processes import TINY, finesight, rows, succeeded, trained
from small import small_batch, small_module

PER_EPOCH = 3
WAIT: dict[str, Any] = {"optim.freeze_epochs": 1, "optim.warmup_epochs": 0}
FORCED = {"optim.clip_grad_norm": 1e12}
NAMES = [name for name, method in METHODS.items() if method.objective]
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gentle": {"backbone.freeze": 2, "backbone.frozen_norm": True},
    "transformer": {"backbone.name": "test_vit", "backbone.output_stride": 16, "views.resolution": 160},
}


def made(method: str, **settings: Any) -> TrainingModule:
    return small_module(method, steps_per_epoch=PER_EPOCH, **WAIT, **settings).train()


def run(module: TrainingModule, steps: range, every: int = 1) -> list[dict[str, float]]:
    """Take steps, the optimizer's after every few of them; return the metrics of each."""
    found = []
    for step in steps:
        batch = small_batch(step, module.config.batch_size)
        module.on_train_batch_start(batch, 0)
        if step % every == 0:
            module.optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        if (step + 1) % every == 0:
            module.optimizer.step()
        module.finish_step(batch)
        found.append(dict(module.metrics))
    return found


def has_gradient(module: TrainingModule) -> bool:
    return any(p.grad is not None for p in module.objective.backbone.parameters())


def state(module: TrainingModule) -> dict[str, Tensor]:
    """Weights, buffers and what the optimizer keeps."""
    kept = module.optimizer.state_dict()["state"]
    beside = {f"{i} {key}": torch.as_tensor(value) for i, one in kept.items() for key, value in one.items()}
    return {**module.state_dict(), **beside}


def assert_same(one: TrainingModule, other: TrainingModule) -> None:
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("method", NAMES)
def test_no_bit_changes_and_no_gradient_is_computed(method: str) -> None:
    ours, forced = made(method), made(method, **FORCED)
    start = {name: value.clone() for name, value in ours.objective.backbone.named_parameters()}
    assert run(ours, range(PER_EPOCH)) == run(forced, range(PER_EPOCH))
    assert not has_gradient(ours)
    assert has_gradient(forced)
    assert_same(ours, forced)
    assert run(ours, range(PER_EPOCH, 2 * PER_EPOCH)) == run(forced, range(PER_EPOCH, 2 * PER_EPOCH))
    assert has_gradient(ours)
    assert_same(ours, forced)
    assert any(not torch.equal(value, start[name]) for name, value in ours.objective.backbone.named_parameters())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", ["lcr", "byol-lcr", "sam-ssl-bilinear"])
def test_networks_of_every_kind(method: str, network: str) -> None:
    ours, forced = (made(method, **NETWORKS[network], **more) for more in ({}, FORCED))
    assert run(ours, range(2)) == run(forced, range(2))
    assert not has_gradient(ours)
    assert run(ours, range(2, 5)) == run(forced, range(2, 5))
    assert_same(ours, forced)


def test_checkpointed_activations_change_nothing_of_it() -> None:
    ours, forced = made("lcr"), made("lcr", **FORCED)
    ours.checkpoint_activations()
    assert run(ours, range(4)) == run(forced, range(4))
    assert_same(ours, forced)


@pytest.mark.parametrize("every", [2, 4])
def test_gradients_that_are_gathered_across_the_border_all_count(every: int) -> None:
    """The backbone begins at step 3, the optimizer steps after 2 and 4, or after 4: step 2, or 0 to 2, count there."""
    settings = {"optim.accumulate_grad_batches": every}
    ours, forced = made("lcr", **settings), made("lcr", **settings, **FORCED)
    assert run(ours, range(4), every) == run(forced, range(4), every)
    assert_same(ours, forced)
    gradients = [[p.grad for p in module.objective.backbone.parameters()] for module in (ours, forced)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_a_run_continues_bit_for_bit_while_it_waits() -> None:
    whole, begun, continued = made("lcr"), made("lcr"), made("lcr")
    expected = run(whole, range(5))
    run(begun, range(2))
    continued.load_state_dict(begun.state_dict())
    continued.optimizer.load_state_dict(begun.optimizer.state_dict())
    assert run(continued, range(2, 5)) == expected[2:]
    assert_same(continued, whole)


@pytest.mark.slow
def test_real_runs_write_the_same_and_two_processes_train_as_one(birds: Path, tmp_path: Path) -> None:
    """DDP waits for all gradients, so that in two processes they are computed."""
    options = ("--data", str(birds), *TINY, "--epochs", "2", "--set", "optim.freeze_epochs=0.6")
    options = (*options, "--set", "backbone.frozen_norm=true")
    ours, forced, two = (tmp_path / name for name in ("ours", "forced", "two"))
    trained(ours, *options)
    trained(forced, *options, "--clip-grad-norm", "1e12")
    succeeded(finesight("train", "--out", two, *options, "--devices", "2"))
    assert (ours / "metrics.csv").read_bytes() == (forced / "metrics.csv").read_bytes()
    weights = [(run / "encoder" / "encoder.safetensors").read_bytes() for run in (ours, forced)]
    assert weights[0] == weights[1]
    for row, other in zip(rows(ours), rows(two), strict=True):
        for name, value in row.items():
            if value:
                assert float(other[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), (name, row["step"])
