"""The named variants, and that every open point of the paper is a switch that does what its name says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone import MapOutput
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import attention_mask
from finesight.rationale.config import VARIANTS, RationaleConfig, VariantName
from finesight.rationale.loss import Rationale
from finesight.training.batches import Batch
from finesight.training.config import build_config
from finesight.training.module import TrainingModule

DOCUMENT = Path(__file__).parents[2] / "docs" / "variants.md"

# The table of ambiguities: row -> field -> the values its variants name.
ROWS: dict[int, dict[str, list[Any]]] = {
    1: {"score": ["loss", "positive", "negative_loss"], "rectify": ["relu", "abs"]},
    2: {"divergence": ["attention_target", "target_attention"]},
    3: {"branch_norm": ["none", "batch"]},
    4: {"attention_scale": ["raw", "image", "batch"]},
    5: {"softmax_over": ["positions", "rows"]},
    6: {"tau": [0.4, 1.0]},
    7: {"reduction": ["mean", "sum", "elements"]},
    8: {"encoder_gradient": [1.0, 0.0, 0.05], "detach_target": [True, False]},
    9: {"mask_range": ["image", "batch"]},
    10: {"mask_divisor": ["max", "shifted_max"]},
    11: {"pooling": ["rationale", "rationale-gem"], "mask_total": ["mean", "sum"]},
    12: {"target_scale": ["batch_mean", "image", "cells", "max", "std"]},
    13: {"probe_input": ["raw", "unit"]},
    14: {"projector": ["2-layer", "3-layer-bn"]},
    15: {"checkpoint": ["last", "best"]},
    16: {"projections": [8, 32]},
    17: {"gradient": ["summed", "own"]},
}

# What the paper prints and what its public code computes.
PAPER = {
    "score": "loss",
    "rectify": "relu",
    "divergence": "attention_target",
    "branch_norm": "none",
    "input_norm": "none",
    "attention_scale": "raw",
    "softmax_over": "positions",
    "tau": 0.4,
    "reduction": "mean",
    "encoder_gradient": 1.0,
    "mask_range": "image",
    "mask_divisor": "max",
    "pooling": "rationale",
    "mask_total": "sum",
    "target_scale": "batch_mean",
    "probe_input": "raw",
    "projector": "3-layer-bn",
    "checkpoint": "last",
    "projections": 32,
    "lam": 1.0,
    "nu": 0.01,
    "branch_lr": None,
}
RELEASED = PAPER | {
    "divergence": "target_attention",
    "branch_norm": "batch",
    "attention_scale": "batch",
    "softmax_over": "rows",
    "tau": 1.0,
    "reduction": "sum",
    "detach_target": False,
    "mask_range": "batch",
    "mask_divisor": "shifted_max",
    "mask_total": "mean",
    "probe_input": "unit",
    "projector": "2-layer",
    "checkpoint": "best",
}


def with_switch(**switches: Any) -> RationaleConfig:
    return RationaleConfig.model_validate(switches)


# --- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", range(1, 18))
def test_every_row_of_the_table_is_a_switch(row: int) -> None:
    for field, values in ROWS[row].items():
        for value in values:
            assert getattr(with_switch(**{field: value}), field) == value
    if row != 16:
        field = next(iter(ROWS[row]))
        with pytest.raises(ValidationError):
            with_switch(**{field: "something else"})


def test_named_variants_are_what_paper_and_public_code_say() -> None:
    assert set(VARIANTS) == {"finesight", "paper", "released"}
    for name, variant in VARIANTS.items():
        assert variant.variant == name
    assert VARIANTS["finesight"] == RationaleConfig()
    for name, expected in (("paper", PAPER), ("released", RELEASED)):
        dumped = VARIANTS[name].model_dump()
        assert {key: dumped[key] for key in expected} == expected


def test_document_has_every_row_and_only_fields_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 18))
    for number, cell in rows:
        named = {name for name in re.findall(r"`([\w.]+)`", cell) if "." not in name}
        assert named == set(ROWS[int(number)])


# --- what a switch changes ----------------------------------------------------------------------------------------

EVERYTHING = {"target", "attention", "loss", "encoder", "branch"}
CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"score": "negative_loss"}, set()),  # the magnitude keeps both halves, whatever the sign
    ({"score": "positive"}, EVERYTHING - {"attention"}),
    ({"rectify": "relu"}, EVERYTHING - {"attention"}),
    *(({"target_scale": scale}, EVERYTHING - {"attention"}) for scale in ("batch_mean", "image", "cells", "std")),
    ({"detach_target": False}, {"encoder"}),
    ({"encoder_gradient": 1.0}, {"encoder"}),
    ({"input_norm": "none"}, EVERYTHING - {"target"}),
    ({"branch_norm": "batch"}, EVERYTHING - {"target"}),
    ({"projections": 8}, EVERYTHING - {"target"}),
    ({"form": "mlp"}, EVERYTHING - {"target"}),
    ({"keep": "top", "keep_count": 4, "keep_from": 1}, set()),  # nothing before that epoch
    ({"study": (2,)}, {"loss"}),
    ({"attention_scale": "image"}, {"loss", "encoder", "branch"}),
    ({"attention_scale": "batch"}, {"loss", "encoder", "branch"}),
    ({"softmax_over": "rows"}, {"loss", "encoder", "branch"}),
    ({"tau": 1.0}, {"loss", "encoder", "branch"}),
    ({"divergence": "attention_target"}, {"loss", "encoder", "branch"}),
    ({"reduction": "sum"}, {"loss", "encoder", "branch"}),
    ({"reduction": "elements"}, {"loss", "encoder", "branch"}),
    # these act elsewhere: in the total loss, the optimizer, at test time
    ({"lam": 2.0, "nu": 2.0, "branch_lr": None}, set()),
    ({"mask_range": "batch", "mask_divisor": "max", "mask_power": 1.0, "pooling": "average"}, set()),
    ({"mask_total": "sum"}, set()),
    ({"gradient": "own"}, set()),  # no batch norm in this head
    ({"probe_input": "raw", "projector": "3-layer-bn", "checkpoint": "best"}, set()),
]


def observed(config: RationaleConfig) -> dict[str, Tensor]:
    torch.manual_seed(0)
    phi = torch.rand(4, 6, 3, 4, dtype=torch.float64).requires_grad_()
    pooled = phi.mean((2, 3))
    keys = F.normalize(torch.randn(4, 6, dtype=torch.float64), dim=1)
    unit = F.normalize(pooled @ torch.randn(6, 6, dtype=torch.float64), dim=1)
    positive = (unit * keys).sum(1)
    loss = F.softplus((unit @ torch.randn(6, dtype=torch.float64) - positive) / 0.2)
    rationale = Rationale(6, config).double()
    result = rationale(ObjectiveOutput(loss, phi, pooled, unit, keys, positive=positive), average_pooled=True)
    encoder, branch = torch.autograd.grad(result.loss, [phi, rationale.branch.filters.weight], materialize_grads=True)
    seen = {"target": result.target, "attention": result.attention, "loss": result.loss.detach()}
    return seen | {"encoder": encoder, "branch": branch}


@pytest.mark.parametrize(("switch", "changed"), CHANGES, ids=[",".join(map(str, s)) or "none" for s, _ in CHANGES])
def test_a_switch_changes_what_it_names_and_nothing_else(switch: dict[str, Any], changed: set[str]) -> None:
    some = {"encoder_gradient": 0.05}  # else what reaches the encoder is nothing, whatever the switch
    base, other = observed(with_switch(**some)), observed(with_switch(**some | switch))
    differs = {name for name in base if base[name].shape != other[name].shape or not base[name].equal(other[name])}
    assert differs == changed


def test_every_field_is_tried_above() -> None:
    assert set(RationaleConfig.model_fields) - {"variant"} == {name for switch, _ in CHANGES for name in switch}


# --- the switches that act elsewhere ------------------------------------------------------------------------------


def training_module(**settings: Any) -> TrainingModule:
    common = {"data": "unused", "batch_size": 4, "epochs": 1, "objective.dim": 8, "views.resolution": 64}
    network = {"backbone.name": "test_resnet", "backbone.weights": "random"}
    return TrainingModule(build_config({**common, **network, **settings}), images=16, steps_per_epoch=4)


def step_of(module: TrainingModule) -> Tensor:
    canvas = torch.randint(256, (4, 3, 74, 74), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loss = module.training_step(Batch(0, canvas, torch.full((4, 2), 74), slice(0, 4)), 0)
    return loss.detach()


@pytest.mark.parametrize(("lam", "nu"), [(1.0, 0.01), (0.5, 3.0), (0.0, 1.0)])
def test_total_loss_weighs_both_parts(lam: float, nu: float) -> None:
    module = training_module(**{"rationale.lam": lam, "rationale.nu": nu})
    total = step_of(module)
    assert float(total) == pytest.approx(lam * module.metrics["objective"] + nu * module.metrics["kl"], rel=1e-6)
    assert module.metrics["loss"] == pytest.approx(float(total))
    assert module.metrics["objective"] > 0
    assert module.metrics["kl"] > 0


def test_without_rationale_the_loss_is_the_contrastive_one() -> None:
    module = training_module(method="moco-v2")
    assert float(step_of(module)) == pytest.approx(module.metrics["objective"])
    assert module.rationale is None
    assert "kl" not in module.metrics


@pytest.mark.parametrize("variant", VARIANTS)
def test_branch_takes_its_own_adam_step_or_a_part_of_the_sgd(variant: VariantName) -> None:
    module = training_module(**{"rationale.variant": variant})
    assert module.rationale is not None
    backbone, heads, branch = module.optimizer.param_groups
    own = VARIANTS[variant].branch_lr
    assert (branch["optimizer"], branch["base_lr"]) == (("sgd", 0.03) if own is None else ("adam", own))
    assert [(group["optimizer"], group["base_lr"]) for group in (backbone, heads)] == [("sgd", 0.03)] * 2
    assert {id(p) for p in branch["params"]} == {id(p) for p in module.rationale.parameters()}
    trained = {id(p) for p in module.objective.parameters() if p.requires_grad}
    own = {id(p) for p in module.objective.backbone.parameters() if p.requires_grad}
    assert {id(p) for p in backbone["params"]} == own
    assert {id(p) for p in heads["params"]} == trained - own


def tiny_encoder(**switches: Any) -> Encoder:
    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="random")
    config = EncoderConfig(
        method="lcr", resolution=32, pooling="rationale", backbone=backbone, rationale=with_switch(**switches)
    )
    return Encoder.untrained(config)


def test_encoder_masks_follow_range_and_divisor() -> None:
    phi = torch.rand(3, 96, 3, 3, generator=torch.Generator().manual_seed(0))
    masks = {}
    for over in ("image", "batch"):
        for divisor in ("max", "shifted_max"):
            encoder = tiny_encoder(mask_range=over, mask_divisor=divisor, mask_power=1.0)
            masks[over, divisor] = encoder.masks(MapOutput(phi))["rationale"]
            expected = attention_mask(encoder.branch(phi), over=over, divisor=divisor)
            assert torch.equal(masks[over, divisor], expected)
            sharper = tiny_encoder(mask_range=over, mask_divisor=divisor, mask_power=3.0)
            plain = attention_mask(sharper.branch(phi), over=over, divisor=divisor)
            torch.testing.assert_close(sharper.masks(MapOutput(phi))["rationale"], plain * plain * plain)
    assert len({tuple(mask.flatten().tolist()) for mask in masks.values()}) == 4
