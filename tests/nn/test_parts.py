"""The parts of networks that can be frozen: the stem, then stages or blocks in the order of the forward pass."""

from __future__ import annotations

import pytest
import torch
from timm.models import register_model
from torch import nn

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.parts import find_parts


class Unknown(nn.Module):
    """A network of another package, of which timm knows neither groups nor stages."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features, self.pretrained_cfg = 4, {"input_size": (3, 32, 32)}
        self.one, self.two = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, 2, 1)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        phi: torch.Tensor = self.two(self.one(images).relu())
        return phi


@register_model
def unknown_parts(pretrained: bool = False, num_classes: int = 0, **_: object) -> Unknown:
    return Unknown()


def test_a_network_whose_stages_are_not_known_can_be_used_as_a_whole() -> None:
    assert not find_parts("unknown_parts")
    net = Backbone(BackboneConfig(name="unknown_parts", weights="random"))
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 4, 8, 8)
    with pytest.raises(FineSightError, match="the stages of 'unknown_parts': it can only be used with freeze 0"):
        Backbone(BackboneConfig(name="unknown_parts", weights="random", freeze=1))
    with pytest.raises(FineSightError, match=r"'unknown_parts': it can only be used with optim.layer_decay 1"):
        net.trained_parts()


def begins(part: tuple[str, ...]) -> set[str]:
    return {name.split(".")[0] if "." not in name else ".".join(name.split(".")[:2]) for name in part}


def test_the_parts_of_a_resnet_are_its_stem_and_layers() -> None:
    parts = find_parts("test_resnet")
    assert [{name.split(".")[0] for name in part} for part in parts.names] == [
        {"conv1", "bn1"},
        *({f"layer{n}"} for n in (1, 2, 3, 4)),
    ]
    assert (parts.kind, parts.transformer, parts.batch_norms, parts.attention) == ("stages", False, True, ())
    assert parts.words == "a stem and 4 stages"


@pytest.mark.parametrize(
    ("name", "stages", "last"),
    [
        ("test_convnext", "stages", {"stages.3"}),
        ("regnetx_002", "s", {"s4.b1", "s4.b2", "s4.b3", "s4.b4", "s4.b5", "s4.b6", "s4.b7"}),
        ("test_efficientnet", "blocks", {"blocks.4", "conv_head.weight", "bn2.weight", "bn2.bias"}),
        ("swin_tiny_patch4_window7_224", "layers", {"layers.3", "norm.weight", "norm.bias"}),
    ],
)
def test_what_follows_the_stages_belongs_to_the_last(name: str, stages: str, last: set[str]) -> None:
    parts = find_parts(name)
    assert begins(parts.names[-1]) == last
    assert all(each.startswith(stages) for part in parts.names[1:-1] for each in part)
    assert not any(each.startswith(f"{stages}.") for each in parts.names[0])
    assert parts.kind == "stages"


@pytest.mark.parametrize(("name", "blocks"), [("test_vit", 6), ("test_vit4", 9), ("vit_small_patch14_reg4_dinov2", 12)])
def test_the_parts_of_a_vision_transformer_are_its_embedding_and_blocks(name: str, blocks: int) -> None:
    parts = find_parts(name)
    assert parts.words == f"a stem and {blocks} blocks"
    assert {each.split(".")[0] for each in parts.names[0]} <= {"cls_token", "reg_token", "pos_embed", "patch_embed"}
    assert {"patch_embed.proj.weight", "pos_embed"} <= set(parts.names[0])
    for number, part in enumerate(parts.names[1:-1]):
        assert begins(part) == {f"blocks.{number}"}
    norm = set() if name == "test_vit4" else {"norm.weight", "norm.bias"}  # that one's norm follows its pooling
    assert begins(parts.names[-1]) == {f"blocks.{blocks - 1}", *norm}
    assert (parts.transformer, parts.batch_norms, len(parts.attention)) == (True, False, 2 * blocks)


def test_all_parts_frozen_is_all_frozen() -> None:
    net = Backbone(BackboneConfig(name="test_vit", weights="random", freeze=7))
    assert not any(p.requires_grad for p in net.parameters())
    assert not any(module.training for module in net.model.modules())


def test_norms_and_dropout_of_frozen_parts_are_in_eval_mode() -> None:
    """Of a network whose stages are found by timm's groups only."""
    net = Backbone(BackboneConfig(name="legacy_seresnet18", weights="random", freeze=2)).train()
    modes = {name.split(".")[1]: module.training for name, module in net.model.named_modules(prefix="m") if name != "m"}
    assert modes == {"layer0": False, "layer1": False, "layer2": True, "layer3": True, "layer4": True} | {
        name: True for name in modes if not name.startswith("layer")
    }
    before = {name: value.clone() for name, value in net.model.named_buffers()}
    net(torch.randn(4, 3, 64, 64))
    moved = {name.split(".")[0] for name, value in net.model.named_buffers() if not torch.equal(value, before[name])}
    assert moved == {"layer2", "layer3", "layer4"}
