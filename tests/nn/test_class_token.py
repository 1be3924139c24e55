"""The class token of a vision transformer and what it attends to, against loops and against timm without fusion."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finesight.api import frozen
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.feature_map import find_map
from finesight.nn.pooling import attention_mask, limit_lengths, limit_outliers, pool
from reference import signed as loops


def network(name: str) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig(name=name, weights="random")).eval()


def images(side: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_attention_as_loops_have_it() -> None:
    backbone, views = network("test_vit"), images(48)
    attention: Any = backbone.model.blocks[-1].attn
    with torch.no_grad():
        attention.qkv.weight.mul_(8)  # or it would be nearly the same everywhere
        attention.qkv.bias.normal_(generator=torch.Generator().manual_seed(2))
    seen: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    output = backbone.outputs(views, attention=True)
    handle.remove()
    weight, bias = (value.double().numpy() for value in (attention.qkv.weight, attention.qkv.bias))
    assert output.attention is not None
    assert output.attention.shape == (2, 3, 3)
    for tokens, found in zip(seen[0].double().numpy(), output.attention, strict=True):
        wanted = loops.class_attention(tokens, weight, bias, attention.num_heads)
        assert np.ptp(wanted) > 0.02
        np.testing.assert_allclose(found.flatten().numpy(), wanted[1:], rtol=1e-4, atol=1e-6)


UNFUSED = {
    "test_vit": 48,
    "deit_tiny_distilled_patch16_224": 32,
    "eva02_tiny_patch14_224": 42,  # rotary embeddings
    "vit_small_patch16_dinov3": 48,  # and registers
    "xcit_nano_12_p8_224": 32,  # attention of the class token alone
}


@pytest.mark.parametrize(("name", "side"), UNFUSED.items())
@torch.no_grad()
def test_attention_as_timm_has_it_without_fusion(name: str, side: int) -> None:
    backbone, views = network(name), images(side)
    output = backbone.outputs(views, attention=True)
    plain, seen = copy.deepcopy(backbone.model), []
    for module in plain.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
        if hasattr(module, "attn_drop"):
            module.attn_drop.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    tokens = plain.forward_features(views)
    prefix = backbone.map.prefix
    wanted = seen[-1][:, :, 0, prefix:].mean(1)
    assert output.attention is not None
    assert output.class_token is not None
    torch.testing.assert_close(output.attention.flatten(1), wanted, rtol=1e-4, atol=1e-6)
    assert (output.attention.sum((1, 2)) < 1).all(), "the class token attends to itself too"
    torch.testing.assert_close(output.class_token, tokens[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.phi, backbone(views), rtol=0, atol=0)


def test_attention_is_computed_only_if_it_is_asked_for() -> None:
    assert network("test_vit").outputs(images(32)).attention is None
    given = network("test_resnet").outputs(images(32), attention=True)
    assert (given.class_token, given.attention) == (None, None)


@pytest.mark.parametrize(
    ("name", "class_token", "attention"),
    [
        ("test_vit", True, True),
        ("test_vit2", False, False),  # a register and no class token
        ("vit_base_patch16_siglip_224", False, False),
        ("vit_small_patch16_18x2_224", True, False),  # two attentions in each block
        ("coat_lite_tiny", True, False),  # factorized attention
        ("swin_tiny_patch4_window7_224", False, False),
    ],
)
def test_what_networks_have(name: str, class_token: bool, attention: bool) -> None:
    found = find_map(name).map
    assert (found.class_token, found.attention) == (class_token, attention)


NEW = ("attention", "attention-gem", "class-token", "class-token-and-average")


@pytest.fixture(scope="module")
def vit() -> Encoder:
    torch.manual_seed(0)
    return frozen(BackboneConfig(name="test_vit", weights="random"), 64)


@torch.no_grad()
def test_the_poolings_of_a_transformer(vit: Encoder) -> None:
    views = images(64, 3)
    given = vit.backbone.outputs(views, attention=True)
    assert given.attention is not None
    assert given.class_token is not None
    found, phi = vit.encode(views, NEW), limit_lengths(given.phi)
    mask = attention_mask(limit_outliers(given.attention))
    unit = torch.nn.functional.normalize
    wanted = {
        "attention": pool(phi, mask),
        "attention-gem": pool(phi, mask, gem=True, signed=True),
        "class-token": given.class_token,
        "class-token-and-average": torch.cat([unit(given.class_token), unit(phi.mean((2, 3)))], 1),
    }
    for name in NEW:
        torch.testing.assert_close(found.features[name], wanted[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.masks["attention"], mask, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_each_pooling_shows_its_mask(vit: Encoder) -> None:
    masks = vit.encode(images(64), NEW).masks
    assert torch.equal(vit.with_pooling("attention").attend(images(64)), masks["attention"])
    assert torch.equal(vit.with_pooling("class-token").attend(images(64)), masks["energy"])
    assert torch.equal(vit.attend(images(64)), masks["energy"])


def test_a_class_token_cannot_be_narrowed(vit: Encoder) -> None:
    part = torch.zeros(2, 64, 64)
    part[:, :32] = 1
    for name in ("class-token", "class-token-and-average"):
        with pytest.raises(FineSightError, match=f"'{name}' is of the whole picture"):
            vit.encode(images(64), (name,), regions=part)
    narrow = vit.encode(images(64), ("attention",), regions=part).features["attention"]
    assert not torch.allclose(narrow, vit.embed(images(64), "attention"))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit2"])
@pytest.mark.parametrize("pooling", NEW)
def test_networks_without_a_class_token_say_so(name: str, pooling: str) -> None:
    with pytest.raises(FineSightError, match=f"'{pooling}' needs a class token, and '{name}' has none"):
        frozen(BackboneConfig(name=name, weights="random"), 64, pooling)
    encoder = frozen(BackboneConfig(name=name, weights="random"), 64)
    with pytest.raises(FineSightError, match="needs a class token"):
        encoder.embed(images(64), pooling)


def test_a_class_token_whose_attention_cannot_be_had() -> None:
    encoder = frozen(BackboneConfig(name="coat_lite_tiny", weights="random"), 224)
    with pytest.raises(FineSightError, match="'attention' cannot be had from 'coat_lite_tiny'"):
        encoder.with_pooling("attention")
    assert encoder.embed(images(224, 1), "class-token").shape == (1, encoder.channels)
