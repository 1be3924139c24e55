"""Rates that fall from the last part of the backbone to the first, and where AdamW decays weights."""

from __future__ import annotations

from typing import Any

import pytest

from finesight.training.module import TrainingModule
from small import assert_continues, small_batch, small_module, take_step

VIT: dict[str, Any] = {"backbone.name": "test_vit", "backbone.output_stride": 32}
RESNET = "test_resnet"


def begun(method: str = "moco-v2", **settings: Any) -> TrainingModule:
    return small_module(method, **settings)


def rates(module: TrainingModule, step: int = 0) -> dict[str, float]:
    """The rate of each weight of the backbone."""
    module.on_train_batch_start(small_batch(step), 0)
    names = {id(p): name for name, p in module.objective.backbone.model.named_parameters()}
    found = {names.get(id(p), ""): group["lr"] for group in module.optimizer.param_groups for p in group["params"]}
    return {name: rate for name, rate in found.items() if name}


def expected_part(name: str, network: str) -> int:
    """Counted from the stem, by the names of these two networks."""
    if network == RESNET:
        return int(name[len("layer")]) if name.startswith("layer") else 0
    if name.startswith("norm."):
        return 6
    return 1 + int(name.split(".")[1]) if name.startswith("blocks.") else 0


@pytest.mark.parametrize("network", [RESNET, "test_vit"])
@pytest.mark.parametrize("freeze", [0, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adamw"])
def test_every_part_learns_at_its_share_of_the_next_ones_rate(network: str, freeze: int, optimizer: str) -> None:
    settings = {"backbone.name": network, "backbone.output_stride": 32, "backbone.freeze": freeze}
    optim = {"optim.lr": 0.2, "optim.backbone_lr_ratio": 0.5, "optim.layer_decay": 0.7, "optim.optimizer": optimizer}
    found = rates(begun(**settings, **optim))
    last = 4 if network == RESNET else 6
    model = begun(**settings).objective.backbone.model
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert sorted(found) == sorted(names)
    for name in names:
        rate = 0.2 * 0.5
        for _ in range(last - expected_part(name, network)):
            rate *= 0.7
        assert found[name] == pytest.approx(rate, rel=1e-12)
    assert {expected_part(name, network) for name in names} == set(range(freeze, last + 1))


def test_parts_wait_and_follow_the_cosine_together() -> None:
    module = begun(**VIT, **{"optim.layer_decay": 0.5, "optim.freeze_epochs": 1, "optim.cosine": "step"})
    assert set(rates(module, 0).values()) == {0.0}
    early, late = rates(module, 2), rates(module, 3)
    assert early["norm.weight"] == pytest.approx(early["blocks.4.norm1.weight"] * 2)
    ratio = late["norm.weight"] / early["norm.weight"]
    assert 0 < ratio < 1
    assert all(late[name] == pytest.approx(ratio * early[name]) for name in early)
    take_step(module, 2)
    assert module.metrics["lr"] == pytest.approx(early["norm.weight"]), "the rate that is logged is the heads'"


@pytest.mark.parametrize("method", ["moco-v2", "lcr"])
def test_without_decay_there_is_one_group_as_ever(method: str) -> None:
    """The groups of former checkpoints: one of the backbone, in the order of its parameters, then the heads'."""
    module = begun(method, **VIT)
    backbone = [p for p in module.objective.backbone.parameters() if p.requires_grad]
    assert [id(p) for p in module.optimizer.param_groups[0]["params"]] == [id(p) for p in backbone]
    assert len(module.optimizer.param_groups) == (2 if method == "moco-v2" else 3)


def test_a_run_with_decay_goes_on_bit_for_bit() -> None:
    settings = {**VIT, "optim.layer_decay": 0.75, "optim.optimizer": "adamw", "optim.lr": 1e-3}
    assert_continues(*(begun("lcr", **settings) for _ in range(3)))


def test_adamw_decays_matrices_only() -> None:
    """Not biases, norms, class tokens and position embeddings; the branch has Adam as ever."""
    module = begun("lcr", **VIT, **{"optim.optimizer": "adamw", "optim.weight_decay": 0.1, "optim.lr": 1e-3})
    decays = {id(p): group["weight_decay"] for group in module.optimizer.param_groups for p in group["params"]}
    for name, p in module.objective.backbone.model.named_parameters():
        exempt = p.ndim == 1 or name in ("cls_token", "pos_embed")
        assert decays[id(p)] == (0.0 if exempt else 0.1), name
    assert {group["optimizer"] for group in module.optimizer.param_groups} == {"adamw", "adam"}
    learning = {id(p) for p in module.parameters() if p.requires_grad}
    assert decays.keys() == learning
