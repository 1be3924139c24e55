"""Maps with negative values: which networks have them, their energy and GeM, and tokens that are far too long."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from finesight.api import frozen
from finesight.features.encoder import Encoder
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.feature_map import find_map
from finesight.nn.objective_output import ObjectiveOutput
from finesight.nn.pooling import attention_mask, energy_map, limit_lengths, limit_outliers, pool
from finesight.rationale.config import RationaleConfig
from finesight.rationale.gradcam import gradcam
from finesight.rationale.loss import scaled_target
from reference import pooling as plain
from reference import signed as loops


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- which networks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "signed"),
    [
        ("test_resnet", False),  # ReLU
        ("test_efficientnet", False),  # SiLU
        ("test_nfnet", False),
        ("densenet121", False),
        ("vgg11", False),  # a pooling after the last ReLU
        ("inception_v3", False),  # branches side by side, each after a ReLU
        ("test_convnext", True),
        ("test_mambaout", True),
        ("repvit_m0_9", True),
        ("test_vit", True),
    ],
)
def test_a_map_is_signed_unless_it_ends_in_an_activation(name: str, signed: bool) -> None:
    assert find_map(name).map.signed is signed


@pytest.mark.parametrize("name", ["test_resnet", "test_nfnet", "test_convnext", "test_vit"])
def test_what_the_network_says_is_true(name: str) -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name=name, weights="random")).eval()
    with torch.no_grad():
        phi = backbone(random(2, 3, 64, 64).float())
    assert bool(phi.min() < -0.3) is backbone.signed
    assert backbone.config.signed is backbone.signed


def test_the_setting_decides_where_it_is_given() -> None:
    assert Backbone(BackboneConfig(name="test_resnet", weights="random", signed=True)).signed
    assert not Backbone(BackboneConfig(name="test_convnext", weights="random", signed=False)).signed


@pytest.mark.parametrize(("name", "signed"), [("test_convnext", False), ("test_resnet", False), ("test_vit", True)])
def test_encoders_of_earlier_versions_pool_as_they_did(tmp_path: Path, name: str, signed: bool) -> None:
    torch.manual_seed(0)
    saved = frozen(BackboneConfig(name=name, weights="random"), 64, "energy-gem")
    saved.save(tmp_path / "encoder")
    file = tmp_path / "encoder" / "encoder.json"
    values = json.loads(file.read_text())
    assert values["backbone"].pop("signed") is saved.backbone.signed
    file.write_text(json.dumps(values))
    encoder, views = Encoder.load(tmp_path / "encoder", exact=True), random(2, 3, 64, 64).float()
    assert encoder.backbone.signed is signed
    phi = encoder.maps(views)
    found = encoder.encode(views, ("gem", "energy-gem"))
    if not signed:
        energy = attention_mask(phi.sum(1))
        torch.testing.assert_close(found.masks["energy"], energy)
        torch.testing.assert_close(found.features["gem"], pool(phi, gem=True))
        torch.testing.assert_close(found.features["energy-gem"], pool(phi, energy, gem=True))


# --- formulas ---------------------------------------------------------------------------------------------------------

MAPS = {
    "random": random(3, 5, 4, 3),
    "one long token": random(2, 4, 3, 3) * torch.where(torch.arange(9).view(3, 3) == 4, 50.0, 1.0),
    "all negative": -random(2, 4, 3, 3).abs(),
    "one cell": random(2, 4, 1, 1),
    "two cells": random(2, 4, 1, 2),
    "constant": torch.full((2, 3, 2, 2), -1.5, dtype=torch.float64),
    "zero": torch.zeros(2, 3, 2, 2, dtype=torch.float64),
}


@pytest.mark.parametrize("phi", MAPS.values(), ids=MAPS)
def test_lengths_energy_and_gem_as_loops_have_them(phi: Tensor) -> None:
    near = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(limit_lengths(phi).numpy(), loops.shortened(phi.numpy()), **near)
    np.testing.assert_allclose(energy_map(phi, signed=True).numpy(), loops.energy(phi.numpy()), **near)
    weights = random(len(phi), *phi.shape[2:], seed=1).abs() + 0.1
    found = pool(phi, weights, gem=True, signed=True)
    np.testing.assert_allclose(found.numpy(), loops.pooled(phi.numpy(), weights.numpy()), **near)
    whole = pool(phi, gem=True, signed=True)
    np.testing.assert_allclose(whole.numpy(), loops.pooled(phi.numpy(), np.ones(weights.shape)), **near)


def test_limits_are_of_each_image_and_nothing_is_shortened_twice() -> None:
    phi = MAPS["one long token"]
    once = limit_lengths(phi)
    assert not torch.allclose(once, phi)
    torch.testing.assert_close(limit_lengths(once), once)
    for i in range(len(phi)):
        assert torch.equal(limit_lengths(phi[i : i + 1])[0], once[i])


def test_a_map_without_signs_is_pooled_as_ever() -> None:
    phi = random(2, 5, 3, 4).abs()
    assert torch.equal(energy_map(phi), phi.sum(1))
    weights = attention_mask(phi.sum(1))
    expected = plain.pooled(phi.clamp(min=1e-6).numpy(), weights.numpy(), 3.0)
    np.testing.assert_allclose(pool(phi, weights, gem=True).numpy(), expected, rtol=1e-12)


# --- tokens that are far too long -------------------------------------------------------------------------------------

CELLS, PLANTED = 7, ((0, 1), (5, 6))


def scene(seed: int, *, planted: bool) -> Tensor:
    """An object of some cells on a background, and two long tokens of one direction on the background."""
    phi = 0.5 * random(1, 32, CELLS, CELLS, seed=seed)
    phi[:, :, 2:5, 2:5] += 1.5 * random(1, 32, 1, 1, seed=100 + seed)
    if planted:
        direction = random(32, seed=7)
        for at in PLANTED:
            phi[0, :, *at] = 10 * phi.norm(dim=1).median() * direction / direction.norm()
    return phi


def planted_share(heat: Tensor) -> float:
    """How much of a map (1, H, W) is in the planted cells; 2 of 49 have a fair share of 4 %."""
    return float(sum(heat[0, *at] for at in PLANTED).detach() / heat.detach().sum())


@pytest.mark.parametrize("seed", range(5))
def test_planted_tokens_do_not_capture_the_energy(seed: int) -> None:
    phi = scene(seed, planted=True)
    assert planted_share(attention_mask(phi.clamp(min=0).sum(1))) > 0.2, "they would"
    assert planted_share(attention_mask(energy_map(phi, signed=True))) < 0.15


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gem", [False, True])
def test_planted_tokens_do_not_capture_the_feature(seed: int, gem: bool) -> None:
    clean = pool(scene(seed, planted=False), gem=gem, signed=True)
    phi = scene(seed, planted=True)
    taken = torch.cosine_similarity(pool(phi, gem=gem, signed=True), clean)
    kept = torch.cosine_similarity(pool(limit_lengths(phi), gem=gem, signed=True), clean)
    assert kept > 0.9
    assert taken < kept - 0.05


@pytest.mark.parametrize("average_pooled", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_planted_tokens_do_not_capture_the_target_of_the_rationale(seed: int, average_pooled: bool) -> None:
    phi = scene(seed, planted=True).requires_grad_()
    pooled = phi.mean((2, 3))
    score = (pooled * random(1, 32, seed=9)).sum(1)
    output = ObjectiveOutput(score, phi, pooled, pooled, pooled)
    targets = [
        scaled_target(gradcam(output, score, average_pooled=average_pooled, limited=limited), RationaleConfig())
        for limited in (False, True)
    ]
    assert planted_share(targets[0]) > 2 * planted_share(targets[1])
    assert planted_share(targets[1]) < 0.2
    plain_target = scaled_target(gradcam(output, score, average_pooled=average_pooled), RationaleConfig())
    assert torch.equal(plain_target, targets[0]), "maps without signs keep theirs"


def test_an_encoder_of_a_transformer_limits_its_tokens() -> None:
    torch.manual_seed(0)
    encoder, phi = frozen(BackboneConfig(name="test_vit", weights="random"), 64), random(2, 64, 4, 4).float()
    phi[:, :, 1, 2] *= 40
    found = encoder.pool(phi, ("average", "energy-gem"))
    short = limit_lengths(phi)
    torch.testing.assert_close(found.features["average"], short.mean((2, 3)))
    torch.testing.assert_close(found.features["energy-gem"], pool(short, found.masks["energy"], gem=True, signed=True))
    assert torch.equal(found.masks["energy"], attention_mask(energy_map(short, signed=True)))
    torch.testing.assert_close(limit_outliers(phi.norm(dim=1)), short.norm(dim=1))
