"""Every layout: a random timm model is saved as its library would, and read into another random model."""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.weights import load_weights
from reference import weight_layouts as layouts
from reference import weight_layouts_stages as stages

State = dict[str, Tensor]
SMALL = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 0}
VIT = ("vit_tiny_patch16_224", {**SMALL, "img_size": 32})
DEIT = ("deit_tiny_distilled_patch16_224", {**SMALL, "img_size": 32})
DINOV2 = ("vit_small_patch14_dinov2", {**SMALL, "img_size": 28})
REGISTERS = ("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": 28})
SWIGLU = ("vit_giant_patch14_reg4_dinov2", {**SMALL, "img_size": 28})
DINOV3 = ("vit_small_patch16_dinov3", SMALL)
DINOV3_BIAS = ("vit_small_patch16_dinov3_qkvb", SMALL)
DINOV3_GATED = ("vit_small_plus_patch16_dinov3_qkvb", SMALL)
CLIP = ("vit_base_patch16_clip_224", {**SMALL, "img_size": 32})
SIGLIP = ("vit_base_patch16_siglip_224", {**SMALL, "img_size": 32})
RESNET = ("resnet18", {"num_classes": 0})
CONVNEXT = ("convnext_tiny", {"depths": (1, 2, 1, 1), "dims": (8, 16, 24, 32), "num_classes": 0})
CONVNEXT_V2 = ("convnextv2_tiny", {"depths": (1, 2, 1, 1), "dims": (8, 16, 24, 32), "num_classes": 0})
SWIN = (
    "swin_tiny_patch4_window7_224",
    {"depths": (2, 1), "embed_dim": 16, "num_heads": (1, 2), "img_size": 32, "window_size": 4, "num_classes": 0},
)
Spec = tuple[str, dict[str, object]]


def make(spec: Spec, **options: object) -> nn.Module:
    return timm.create_model(spec[0], pretrained=False, **{**spec[1], **options}).eval()


def scramble(model: nn.Module) -> nn.Module:
    """Give every tensor random values, so that any that is left out or mistaken for another shows.

    They are multiples of 1/1024, of which sums are exact.
    """
    generator = torch.Generator().manual_seed(7)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randint(1, 512, tensor.shape, generator=generator) / 1024)
    return model


def save(state: State, path: Path) -> Path:
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, path)
    return path


def images(model: nn.Module) -> Tensor:
    side = model.patch_embed.img_size[0] if hasattr(model, "patch_embed") else 64
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(3))


def assert_same(model: nn.Module, donor: nn.Module) -> None:
    for name, tensor in donor.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    batch = images(donor)
    with torch.no_grad():
        assert torch.equal(model(batch), donor(batch))


def first_position(state: State) -> Tensor:
    return torch.randint(1, 512, (1, 1, state["cls_token"].shape[-1])) / 1024


LAYOUTS: dict[str, tuple[Spec, Callable[[State], State], str]] = {
    "hf-vit": (VIT, layouts.hf_vit, "Hugging Face ViT, DINOv2 or Swin names after 'vit.'"),
    "hf-deit": (DEIT, layouts.hf_vit, "Hugging Face ViT, DINOv2 or Swin names after 'vit.'"),
    "dinov2": (DINOV2, lambda s: layouts.dinov2(s, first_position(s)), "DINOv2 names"),
    "dinov2-registers": (REGISTERS, lambda s: layouts.dinov2(s, first_position(s)), "DINOv2 names"),
    "dinov2-swiglu": (SWIGLU, lambda s: layouts.dinov2(s, first_position(s)), "DINOv2 names"),
    "hf-dinov2": (DINOV2, lambda s: layouts.hf_dinov2(s, first_position(s)), "Hugging Face ViT, DINOv2 or Swin names"),
    "hf-dinov2-registers": (
        REGISTERS,
        lambda s: layouts.hf_dinov2(s, first_position(s)),
        "Hugging Face ViT, DINOv2 or Swin names",
    ),
    "hf-dinov2-swiglu": (
        SWIGLU,
        lambda s: layouts.hf_dinov2(s, first_position(s)),
        "Hugging Face ViT, DINOv2 or Swin names",
    ),
    "dinov3": (DINOV3, layouts.dinov3, "DINOv3 names"),
    "dinov3-bias": (DINOV3_BIAS, layouts.dinov3, "DINOv3 names"),
    "dinov3-gated": (DINOV3_GATED, layouts.dinov3, "DINOv3 names"),
    "hf-dinov3": (DINOV3, layouts.hf_dinov3, "Hugging Face DINOv3 names"),
    "hf-dinov3-bias": (DINOV3_BIAS, layouts.hf_dinov3, "Hugging Face DINOv3 names"),
    "hf-dinov3-gated": (DINOV3_GATED, layouts.hf_dinov3, "Hugging Face DINOv3 names"),
    "open-clip": (CLIP, layouts.open_clip, "open_clip names"),
    "open-clip-visual": (
        CLIP,
        lambda s: {k.removeprefix("visual."): v for k, v in layouts.open_clip(s).items() if k.startswith("visual.")},
        "open_clip names",
    ),
    "open-clip-module": (
        CLIP,
        lambda s: {f"module.{k}": v for k, v in layouts.open_clip(s).items()},
        "open_clip names",
    ),
    "hf-clip": (CLIP, layouts.hf_clip, "Hugging Face CLIP or SigLIP names after 'vision_model.'"),
    "hf-siglip": (SIGLIP, layouts.hf_clip, "Hugging Face CLIP or SigLIP names after 'vision_model.'"),
    "hf-resnet": (RESNET, stages.hf_resnet, "Hugging Face ResNet names after 'resnet.'"),
    "convnext": (CONVNEXT, stages.convnext, "facebookresearch ConvNeXt names"),
    "hf-convnext": (CONVNEXT, stages.hf_convnext, "Hugging Face ConvNeXt names after 'convnext.'"),
    "hf-convnext-v2": (CONVNEXT_V2, stages.hf_convnext, "Hugging Face ConvNeXt names after 'convnext.'"),
    "hf-dinov3-convnext": (CONVNEXT, stages.hf_dinov3_convnext, "Hugging Face DINOv3 ConvNeXt names"),
    "swin": (SWIN, stages.swin, "microsoft Swin names"),
    "hf-swin": (SWIN, stages.hf_swin, "Hugging Face ViT, DINOv2 or Swin names after 'swin.'"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout(tmp_path: Path, name: str) -> None:
    spec, rename, title = LAYOUTS[name]
    donor, model = scramble(make(spec)), make(spec)
    report = load_weights(model, save(rename(donor.state_dict()), tmp_path / "w.safetensors"))
    count = sum(not key.endswith("num_batches_tracked") for key in donor.state_dict())
    assert report.startswith(f"{count} of {count} tensors matched ({title})")
    assert "resampled" not in report
    for key in donor.state_dict():  # of which no library but torch has a use
        if key.endswith("num_batches_tracked"):
            model.get_buffer(key).copy_(donor.get_buffer(key))
    assert_same(model, donor)


def torchvision_models() -> dict[str, tuple[nn.Module, Spec, str]]:
    vit = VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=128)
    vit.heads = nn.Identity()
    swin = SwinTransformer([4, 4], 16, depths=[2, 1], num_heads=[1, 2], window_size=[4, 4])
    swin.head = nn.Identity()
    convnext = ConvNeXt([CNBlockConfig(*sizes) for sizes in ((8, 16, 1), (16, 24, 2), (24, 32, 1), (32, None, 1))])
    convnext.classifier[2] = nn.Identity()
    return {"ViT": (vit, VIT, "ViT"), "Swin": (swin, SWIN, "Swin"), "ConvNeXt": (convnext, CONVNEXT, "ConvNeXt")}


@pytest.mark.parametrize("name", ["ViT", "Swin", "ConvNeXt"])
def test_torchvision_itself(tmp_path: Path, name: str) -> None:
    donor, spec, title = torchvision_models()[name]
    generator = torch.Generator().manual_seed(5)
    for parameter in donor.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 5)
    torch.save(donor.state_dict(), tmp_path / "w.pth")
    model = make(spec)
    report = load_weights(model, tmp_path / "w.pth")
    assert f"tensors matched (torchvision {title} names)" in report
    assert "random" not in report
    batch = torch.rand(2, 3, 32, 32, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(model(batch), donor.eval()(batch), rtol=1e-4, atol=1e-4)


def networks(first: State, second: State) -> dict[str, tuple[object, str]]:
    """Return checkpoints of self-supervised training with two networks, of which ``first`` is the one to take."""

    def under(prefix: str, state: State) -> State:
        return {prefix + name: tensor for name, tensor in state.items()}

    return {
        "dino": (
            {
                "student": under("module.backbone.", second) | {"module.head.mlp.0.weight": torch.ones(2)},
                "teacher": under("backbone.", first) | {"head.mlp.0.weight": torch.ones(2)},
                "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []},
                "args": argparse.Namespace(arch="vit_tiny"),
                "dino_loss": {"center": torch.ones(1, 2)},
            },
            "timm names after 'teacher.backbone.'",
        ),
        "dinov2": (
            {"teacher": layouts.dinov2_in_training(first, chunk=1)},
            "timm names after 'teacher.backbone.'",
        ),
        "moco-v3": (
            {
                "arch": "vit_tiny",
                "state_dict": under("module.base_encoder.", first) | under("module.momentum_encoder.", second),
            },
            "timm names after 'module.base_encoder.'",
        ),
        "byol": (
            {"online_network_state_dict": first, "target_network_state_dict": second},
            "timm names after 'online_network_state_dict.'",
        ),
        "byol-pytorch": (
            under("online_encoder.net.", first) | under("target_encoder.net.", second),
            "timm names after 'online_encoder.net.'",
        ),
        "solo-learn": (
            {"state_dict": under("momentum_backbone.", second) | under("backbone.", first)},
            "timm names after 'backbone.'",
        ),
        "open_clip with a timm network": (
            under("visual.trunk.", first) | {"text.positional_embedding": torch.ones(2)},
            "timm names after 'visual.trunk.'",
        ),
        "compiled": (under("_orig_mod.", first), "timm names"),
    }


@pytest.mark.parametrize("name", networks({}, {}))
def test_the_right_one_of_two_networks(tmp_path: Path, name: str) -> None:
    donor, model = scramble(make(VIT)), make(VIT)
    first = donor.state_dict()
    content, title = networks(first, {key: tensor + 1 for key, tensor in first.items()})[name]
    torch.save(content, tmp_path / "w.pth")
    assert load_weights(model, tmp_path / "w.pth").startswith(f"{len(first)} of {len(first)} tensors matched ({title})")
    assert_same(model, donor)


def test_a_numbered_resnet_of_byol(tmp_path: Path) -> None:
    donor = scramble(torchvision.models.resnet18())
    numbered = nn.Sequential(*list(donor.children())[:-1]).state_dict()
    online = {f"encoder.{name}": tensor for name, tensor in numbered.items()} | {"projetion.net.0.bias": torch.ones(2)}
    target = {name: tensor + 1 for name, tensor in online.items()}
    content = {"online_network_state_dict": online, "target_network_state_dict": target}
    torch.save(content, tmp_path / "w.pth")
    model = make(RESNET)
    report = load_weights(model, tmp_path / "w.pth")
    assert report.startswith(
        "100 of 100 tensors matched (numbered ResNet names after 'online_network_state_dict.encoder.')"
    )
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, donor.state_dict()[name]), name


def test_positions_of_another_grid_are_resampled_as_timm_does(tmp_path: Path) -> None:
    donor, model = scramble(make(VIT, img_size=64)), make(VIT)
    state = donor.state_dict()
    for number, renamed in enumerate((state, layouts.hf_vit(state))):
        report = load_weights(model, save(renamed, tmp_path / f"{number}.safetensors"))
        assert "resampled: pos_embed (1, 17, 32) to (1, 5, 32)" in report
        grid = state["pos_embed"][:, 1:].reshape(1, 4, 4, 32).permute(0, 3, 1, 2)
        smaller = nn.functional.interpolate(grid, size=(2, 2), mode="bicubic", antialias=True)
        expected = torch.cat([state["pos_embed"][:, :1], smaller.permute(0, 2, 3, 1).reshape(1, 4, 32)], 1)
        torch.testing.assert_close(model.state_dict()["pos_embed"], expected)
        nn.init.zeros_(model.pos_embed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_embed.proj.weight": torch.ones(32, 1, 16, 16)}, r"another shape.*patch_embed.proj.weight \(32, 1, 16"),
        ({"pos_embed": None}, "only 29 of the model's 30 tensors matched. Missing: pos_embed"),
        ({"blocks.2.norm1.weight": torch.ones(32)}, "has 1 tensors that the model has no place for: blocks.2.norm1"),
        ({"blocks.0.ls1.gamma": torch.ones(32)}, "no place for: blocks.0.ls1.gamma"),
        ({"register_tokens": torch.ones(1, 4, 32)}, "no place for: register_tokens"),
    ],
)
def test_a_network_of_another_kind_is_an_error(tmp_path: Path, change: dict[str, Tensor | None], message: str) -> None:
    state = {**scramble(make(VIT)).state_dict(), **change}
    path = save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "w.safetensors")
    model = make(VIT)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(FineSightError, match=message):
        load_weights(model, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("rename", [layouts.dinov3, layouts.hf_dinov3])
def test_a_bias_that_the_model_has_not_is_an_error_unless_it_is_zero(
    tmp_path: Path, rename: Callable[[State], State]
) -> None:
    """The layouts of ``test_a_published_layout`` have a bias of zero for the same model."""
    path = save(rename(scramble(make(DINOV3_BIAS)).state_dict()), tmp_path / "w.safetensors")
    with pytest.raises(
        FineSightError, match=r"has 2 tensors that the model has no place for: blocks\.0\.attn\.qkv\.bias"
    ):
        load_weights(make(DINOV3), path)


def test_what_is_not_used_is_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = scramble(make(VIT)).state_dict()
    extra = {f"text.blocks.{i}.weight": torch.ones(1) for i in range(7)}
    path = save(
        {**state, **extra, "logit_scale": torch.ones(1), "head.weight": torch.ones(1)}, tmp_path / "w.safetensors"
    )
    with caplog.at_level(logging.INFO, logger="finesight.weights"):
        report = load_weights(make(VIT), path)
    assert report == "30 of 30 tensors matched (timm names); not used: logit_scale, text.blocks (7 tensors)"
    assert all(name in caplog.text for name in (*extra, "logit_scale", "head.weight"))
    assert "pos_embed" not in caplog.text


def test_a_backbone_takes_a_checkpoint_of_another_library(tmp_path: Path) -> None:
    donor = scramble(timm.create_model("test_vit", pretrained=False, num_classes=10)).eval()
    path = save(layouts.hf_vit(donor.state_dict()), tmp_path / "w.safetensors")
    backbone = Backbone(BackboneConfig(name="test_vit", weights=str(path))).eval()
    assert "tensors matched (Hugging Face ViT, DINOv2 or Swin names after 'vit.')" in backbone.load_report
    batch = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        tokens = donor.forward_features(batch)[:, donor.num_prefix_tokens :]
        torch.testing.assert_close(backbone(batch).flatten(2).transpose(1, 2), tokens, rtol=1e-4, atol=1e-4)
