"""Every method continues from a saved state bit for bit (test_resume.py has the default one in real processes)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finesight.methods.base import METHODS
from finesight.training.checkpoints import load_checkpoint, save_checkpoint
from finesight.training.module import TrainingModule
from small import small_module, take_step

pytestmark = pytest.mark.slow

STEPS, STOP = 4, 2  # in epochs of two: DINO's prototypes begin to move where the run continues
NAMES = [name for name, method in METHODS.items() if method.objective and name != "lcr"]


def trained(module: TrainingModule, *steps: int) -> TrainingModule:
    for step in steps:
        take_step(module, step)
    return module


def continued(method: str, folder: Path) -> TrainingModule:
    """Stopped in the middle, saved and read as ``train`` does, and brought to the end by another module."""
    module = trained(small_module(method), *range(STOP))
    save_checkpoint(folder, STOP, {"module": module.state_dict(), "optimizer": module.optimizer.state_dict()})
    fresh = small_module(method)
    torch.manual_seed(99)  # nothing may hang on what was drawn before
    loaded = load_checkpoint(folder)
    assert loaded is not None
    _, state = loaded
    fresh.load_state_dict(state["module"])
    fresh.optimizer.load_state_dict(state["optimizer"])
    assert int(fresh.steps) == STOP
    return trained(fresh, *range(int(fresh.steps), STEPS))


def different(a: TrainingModule, b: TrainingModule) -> list[str]:
    """Weights and buffers that are not the same in every bit."""
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


@pytest.mark.parametrize("method", NAMES)
def test_continued_is_never_stopped(method: str, tmp_path: Path) -> None:
    start, whole = small_module(method), trained(small_module(method), *range(STEPS))
    again = continued(method, tmp_path)
    assert different(whole, again) == []
    assert again.metrics == whole.metrics
    for ours, theirs in zip(*(m.optimizer.state_dict()["state"].values() for m in (whole, again)), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key])) for key in ours)
    # training moves what is compared: heads, twins, the queue, the center, statistics
    moved = {name.split(".")[1] for name in different(start, whole) if name.startswith("objective.")}
    having = {name for name, child in start.objective.named_children() if child.state_dict()}  # an average has no state
    assert moved == having | ({"center"} if method == "dino" else set())
