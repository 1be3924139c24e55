"""Training on the tokens of a vision transformer: the rationale, every objective, stopping and continuing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from finesight.methods.base import METHODS
from finesight.training.checkpoints import load_checkpoint, save_checkpoint
from finesight.training.module import TrainingModule
from small import small_module, take_step

VIT: dict[str, Any] = {"backbone.name": "test_vit", "backbone.output_stride": 32, "views.local_resolution": 16}


def begun(method: str = "lcr", **settings: Any) -> TrainingModule:
    return small_module(method, **VIT, **settings)


def test_the_rationale_and_the_backbone_learn() -> None:
    module, before = begun(), begun().state_dict()
    for step in range(2):
        take_step(module, step)
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    for part in ("pos_embed", "cls_token", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "norm.weight"):
        assert f"objective.backbone.model.{part}" in moved
    assert any(name.startswith("rationale.branch") for name in moved)


def test_frozen_blocks_stay() -> None:
    module = begun(**{"backbone.freeze": 3, "backbone.frozen_norm": True})
    before = {name: value.clone() for name, value in module.objective.backbone.model.state_dict().items()}
    for step in range(2):
        take_step(module, step)
    after = module.objective.backbone.model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert {name.split(".")[0] for name in moved} == {"blocks", "norm"}
    assert {name.split(".")[1] for name in moved if name.startswith("blocks")} == {"2", "3", "4", "5"}


def test_stopped_and_continued_is_never_stopped(tmp_path: Path) -> None:
    whole, first, second = begun(), begun(), begun()
    for step in range(4):
        take_step(whole, step)
    for step in range(2):
        take_step(first, step)
    save_checkpoint(tmp_path, 2, {"module": first.state_dict(), "optimizer": first.optimizer.state_dict()})
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    second.load_state_dict(loaded[1]["module"])
    second.optimizer.load_state_dict(loaded[1]["optimizer"])
    for step in range(2, 4):
        take_step(second, step)
    expected = whole.state_dict()
    assert [name for name, value in second.state_dict().items() if not torch.equal(value, expected[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.objective])
def test_every_method_takes_steps(method: str) -> None:
    module = begun(method)
    for step in range(2):
        take_step(module, step)
    assert module.is_finite()
