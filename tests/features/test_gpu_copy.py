"""A copy of an encoder embeds in its place. Without a GPU the copy is on the CPU too, in full precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from close import same_rows
from finesight.features.encoder import SOME, Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.gpu import GpuCopy, agree
from finesight.nn.backbone_config import BackboneConfig
from finesight.rationale.config import RationaleConfig

POOLINGS = ("rationale-gem", "average")


def encoder() -> Encoder:
    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="random")
    config = EncoderConfig(
        method="lcr", resolution=64, pooling="rationale-gem", backbone=backbone, rationale=RationaleConfig()
    )
    return Encoder.untrained(config)


def views(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_the_same_features_until_the_weights_change() -> None:
    one = encoder()
    made, expected = GpuCopy(one, "cpu", half=None), one.encode(views(), POOLINGS)
    found = made.encode(views(), POOLINGS, None, None)
    for name in POOLINGS:
        assert same_rows(found.features[name], expected.features[name])
    assert same_rows(found.attention.flatten(1), expected.attention.flatten(1))
    assert made.fits()
    assert copy.deepcopy(made) is None, "whoever copies the encoder trains it perhaps"
    with torch.no_grad():
        next(one.branch.parameters()).mul_(2)  # type: ignore[union-attr]
    assert not made.fits()


def test_branches_beside_the_encoders_own_are_copied() -> None:
    one = encoder()
    both = one.with_branches({"other": one.fresh_branch(3)})
    names = ("rationale:other",)
    found = GpuCopy(both, "cpu", half=None).encode(views(), names, None, None).features
    assert same_rows(found[names[0]], both.encode(views(), names).features[names[0]])


def test_half_precision_is_used_where_every_image_agrees() -> None:
    random = np.random.default_rng(0)
    full = random.normal(size=(6, 40))
    aside = random.normal(size=(6, 40))
    aside -= full * (aside * full).sum(1, keepdims=True) / (full**2).sum(1, keepdims=True)
    aside *= np.linalg.norm(full, axis=1, keepdims=True) / np.linalg.norm(aside, axis=1, keepdims=True)

    def turned(cosines: list[float]) -> torch.Tensor:
        cosine = np.array(cosines)[:, None]
        return torch.from_numpy(3 * (full * cosine + aside * np.sqrt(1 - cosine**2)))

    assert agree(torch.from_numpy(full), turned([0.9991] * 6))
    assert not agree(torch.from_numpy(full), turned([0.9999] * 5 + [0.9989]))
    broken = turned([1.0] * 6)
    broken[2, 3] = torch.nan
    assert not agree(torch.from_numpy(full), broken)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu() -> None:
    one = encoder()
    expected = one.encode(views(40), POOLINGS).features
    one.prepare_for(SOME)
    found = one.encode(views(40), POOLINGS).features
    for name in POOLINGS:
        assert agree(expected[name], found[name])
