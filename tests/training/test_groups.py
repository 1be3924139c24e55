"""Which weights learn when, and how fast: groups whose rate stays, groups that wait, the rest on the cosine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from finesight.methods.dino import DINO
from finesight.methods.simsiam import SimSiam
from finesight.training.module import TrainingModule
from reference.schedule import rates
from small import small_batch, small_module, take_step

PER_EPOCH, EPOCHS = 2, 3
STEPS = PER_EPOCH * EPOCHS


def lrs(module: TrainingModule, step: int) -> list[float]:
    module.on_train_batch_start(small_batch(step), 0)
    return [group["lr"] for group in module.optimizer.param_groups]


def weights(module: TrainingModule, prefix: str) -> dict[str, Tensor]:
    own = {name: p.detach().clone() for name, p in module.named_parameters() if name.startswith(f"objective.{prefix}")}
    assert own
    return own


def moved(module: TrainingModule, prefix: str, step: int) -> list[bool]:
    """Which of these weights a step changes."""
    before = weights(module, prefix)
    take_step(module, step)
    return [not torch.equal(before[name], value) for name, value in weights(module, prefix).items()]


def built(method: str, **settings: object) -> TrainingModule:
    return small_module(method, steps_per_epoch=PER_EPOCH, epochs=EPOCHS, **settings)


@pytest.mark.parametrize(
    "method",
    ["moco-v2", "lcr", "byol", "byol-lcr", "simclr", "simsiam", "dino", "barlow-twins", "vicreg", "supervised"],
)
def test_every_weight_that_learns_is_in_one_group(method: str) -> None:
    module = built(method)
    grouped = [p for group in module.optimizer.param_groups for p in group["params"]]
    learning = [p for p in module.parameters() if p.requires_grad]
    assert len(grouped) == len({id(p) for p in grouped})
    assert {id(p) for p in grouped} == {id(p) for p in learning}
    rules = {group["optimizer"] for group in module.optimizer.param_groups}
    adaptive = method in ("byol", "byol-lcr", "simclr", "barlow-twins", "vicreg")
    assert rules == {"lars" if adaptive else "sgd"} | ({"adam"} if module.rationale else set())


def test_simsiams_predictor_keeps_its_rate_while_the_rest_follows_the_cosine() -> None:
    module = built("simsiam", **{"optim.lr": 0.5})
    assert isinstance(module.objective, SimSiam)
    backbone, head, predictor = module.optimizer.param_groups
    assert {id(p) for p in predictor["params"]} == {id(p) for p in module.objective.predictor.parameters()}
    expected = [0.5 * share for share in rates(PER_EPOCH, EPOCHS, 0, "epoch")]
    for step in range(STEPS):
        assert lrs(module, step) == pytest.approx([expected[step], expected[step], 0.5])
    assert expected[-1] < 0.2
    assert backbone["lr"] == head["lr"] != predictor["lr"]


def test_dinos_prototypes_stand_still_for_an_epoch() -> None:
    """Momentum of the steps in which they waited would move them too; and they are the student's, not the teacher's."""
    module = built("dino", **{"optim.warmup_epochs": 0})
    assert isinstance(module.objective, DINO)
    for step in range(PER_EPOCH):
        assert moved(module, "head.prototypes", step) == [False]
        assert not module.optimizer.state[module.objective.head.prototypes]
        *others, prototypes = (group["lr"] for group in module.optimizer.param_groups)
        assert prototypes == 0
        assert all(rate > 0 for rate in others)
    assert moved(module, "head.prototypes", PER_EPOCH) == [True]
    assert len({group["lr"] for group in module.optimizer.param_groups}) == 1, "on the cosine, as the rest"


@pytest.mark.parametrize("hold", [0.0, 0.5, 1.0, 2.0])
def test_dinos_prototypes_wait_as_long_as_they_are_told(hold: float) -> None:
    module = built("dino", **{"objective.freeze_epochs": hold})
    waiting = [lrs(module, step)[-1] == 0 for step in range(STEPS)]
    assert waiting == [step < hold * PER_EPOCH for step in range(STEPS)]


@pytest.mark.parametrize("method", ["moco-v2", "simsiam", "simclr", "dino", "byol-lcr"])
def test_a_held_backbone_waits_while_the_heads_learn(method: str) -> None:
    settings = {"optim.freeze_epochs": 1, "optim.warmup_epochs": 0, "backbone.frozen_norm": True}
    module = built(method, **settings)
    for step in range(PER_EPOCH):
        assert not any(moved(module, "backbone", step))
    assert any(moved(module, "backbone", PER_EPOCH))
    module = built(method, **settings)
    assert any(moved(module, "head", 0))


def test_the_floor_and_the_backbones_share_reach_the_groups() -> None:
    settings = {"optim.lr": 0.5, "optim.min_lr_ratio": 0.2, "optim.backbone_lr_ratio": 0.1, "optim.cosine": "step"}
    module = built("moco-v2", **settings)
    for step, share in enumerate(rates(PER_EPOCH, EPOCHS, 0, "step", 0.2)):
        assert lrs(module, step) == pytest.approx([0.05 * share, 0.5 * share])


@pytest.mark.parametrize(("method", "decays"), [("dino", False), ("moco-v2", True), ("simsiam", True)])
def test_only_dino_spares_biases_and_norms_the_decay(method: str, decays: bool) -> None:
    """As its authors do. Weights that get no gradient move by decay alone."""
    module = built(method, **{"optim.weight_decay": 0.1, "optim.lr": 1.0, "optim.warmup_epochs": 0})
    module.on_train_batch_start(small_batch(0), 0)
    rates = {id(p): group["lr"] for group in module.optimizer.param_groups for p in group["params"]}
    learning = {name: p for name, p in module.named_parameters() if p.requires_grad and rates[id(p)] > 0}
    with torch.no_grad():
        for p in learning.values():
            p.fill_(2.0)
            p.grad = torch.zeros_like(p)
    module.optimizer.step()
    shrunk = {name for name, p in learning.items() if not torch.equal(p, torch.full_like(p, 2.0))}
    matrices = {name for name, p in learning.items() if p.ndim > 1}
    assert matrices < learning.keys()
    assert shrunk == (learning.keys() if decays else matrices)
