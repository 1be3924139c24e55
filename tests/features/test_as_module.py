"""An encoder used as any torch module, and its backbone as a timm model and a weight file of timm's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

import finesight
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.timm_model import export_timm
from finesight.nn.backbone_config import BackboneConfig
from finesight.rationale.config import VARIANTS
from processes import command, refused, succeeded


def make(name: str = "test_resnet", pooling: str = "average", resolution: int = 64, **backbone: object) -> Encoder:
    torch.manual_seed(0)
    rationale = VARIANTS["finesight"] if "rationale" in pooling else None
    network = BackboneConfig(name=name, weights="random", **backbone)  # type: ignore[arg-type]
    settings = EncoderConfig(
        method="untrained", resolution=resolution, pooling=pooling, backbone=network, rationale=rationale
    )
    return Encoder.untrained(settings)


def views(side: int = 64, count: int = 3) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def off(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("name", "pooling", "side"),
    [
        ("test_resnet", "rationale", 64),
        ("test_resnet", "energy-gem-two-maps", 64),
        ("test_vit", "class-token", 160),
        ("test_vit", "attention", 160),
    ],
)
def test_a_call_gives_what_embed_gives_with_gradients(name: str, pooling: str, side: int) -> None:
    encoder, images = make(name, pooling, side), views(side)
    features = encoder(images)
    assert off(features.detach(), encoder.embed(images)) < 1e-5
    features.square().sum().backward()
    assert all(weights.grad is not None for weights in encoder.backbone.parameters())
    with torch.no_grad():
        assert off(encoder(images), encoder.embed(images)) < 1e-5


def test_weights_that_change_count_at_once() -> None:
    """Embedding uses a faster copy of the weights; a fine-tuning step must move both."""
    encoder, images = make(), views()
    before = encoder.embed(images)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder.train()
    encoder(images).square().mean().backward()
    optimizer.step()
    encoder.eval()
    after = encoder(images).detach()
    assert off(after, before) > 1e-3
    assert off(encoder.embed(images), after) < 1e-5


def test_the_state_goes_through_torch_save(tmp_path: Path) -> None:
    encoder, other = make(pooling="rationale"), make(pooling="rationale")
    with torch.no_grad():
        for weights in other.parameters():
            weights.mul_(1.5)
    assert off(other(views()).detach(), encoder.embed(views())) > 1e-3
    torch.save(encoder.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(views()), encoder(views()))
    assert next(other.to(torch.float64).parameters()).dtype == torch.float64


@pytest.mark.slow
def test_torch_compile_gives_the_same_features() -> None:
    encoder, images = make(pooling="rationale", output_stride=8), views()
    with torch.no_grad():
        found = torch.compile(encoder, backend="aot_eager")(images)
    assert off(found, encoder.embed(images)) < 1e-5


def test_what_is_not_a_normalized_tensor_is_told_what_to_call() -> None:
    encoder = make()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    for given, words in (
        ([Image.fromarray(pixels[0])], r"encoder\.embed\(images\)"),
        (torch.from_numpy(pixels).permute(0, 3, 1, 2), r"encoder\.normalize\(pixels\)"),
        (torch.zeros(3, 64, 64), r"\(N, 3, height, width\)"),
    ):
        with pytest.raises(FineSightError, match=words):
            encoder(given)
    assert encoder(encoder.normalize(pixels)).shape == (2, encoder.channels)


@pytest.mark.parametrize(
    ("name", "side", "settings"),
    [("test_resnet", 64, {"output_stride": 8}), ("test_vit", 160, {}), ("test_convnext", 64, {})],
)
def test_timm_has_the_same_map_from_the_model_and_from_the_file(
    tmp_path: Path, name: str, side: int, settings: dict[str, int]
) -> None:
    encoder, images = make(name, resolution=side, **settings), views(side)
    with torch.no_grad():
        expected = encoder.backbone(images)
        own = encoder.to_timm()
        assert torch.equal(encoder.backbone.map(own.forward_features(images), images), expected)
        done = export_timm(encoder, tmp_path / "model.safetensors")
        loaded = timm.create_model(name, checkpoint_path=str(done.file), num_classes=0, **settings).eval()
        found = encoder.backbone.map(loaded.forward_features(images), images)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert set(done.untrained) == ({"head.norm.weight", "head.norm.bias"} if name == "test_convnext" else set())
    assert not own.training
    assert timm.data.resolve_model_data_config(own)["input_size"] == (3, side, side)
    own.get_parameter(next(iter(dict(own.named_parameters())))).data.zero_()
    assert torch.equal(encoder.backbone(images), expected), "it is a copy"


def test_caffe_strides_stay_in_the_model_and_are_refused_as_a_file(tmp_path: Path) -> None:
    encoder = make("resnet26", resolution=64, stride_in_1x1=True)
    with torch.no_grad():
        found = encoder.to_timm().forward_features(views())
        assert torch.equal(found, encoder.backbone(views()))
        plain = timm.create_model("resnet26", num_classes=0).eval()
        plain.load_state_dict(encoder.to_timm().state_dict())
        assert not torch.allclose(plain.forward_features(views()), found), "timm's strides would give another map"
    with pytest.raises(FineSightError, match="caffe strides"):
        export_timm(encoder, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FineSightError, match="does not: the weights"):
        export_timm(make(output_stride=8, dilate=False), tmp_path / "model.safetensors")


def test_the_command_writes_a_file_for_timm(lcr: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    facts = json.loads(succeeded(command("export", lcr, out, "--json")).out)
    loaded = eval(facts["call"], {"timm": timm})
    encoder = finesight.load(lcr)
    with torch.no_grad():
        found, expected = loaded.eval().forward_features(views(32)), encoder.backbone(views(32))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    refused(command("export", lcr, tmp_path / "m.onnx", "--format", "timm"), "must end in .safetensors")
    refused(command("export", lcr, out, "--int8", "--calibrate", tmp_path), "timm takes weights alone")
