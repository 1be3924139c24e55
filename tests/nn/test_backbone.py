import copy
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone, BackboneConfig
from real_birds import WEIGHTS, needs_weights

SMALL = ["resnet10t", "test_convnext", "test_efficientnet", "regnetx_002"]


def backbone(name: str = "resnet10t", **options: object) -> Backbone:
    return Backbone(BackboneConfig.model_validate({"name": name, "weights": "random", **options}))


def images(n: int = 2, side: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.named_buffers()}


def moved(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in module.named_buffers() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("stride", "side", "cells"), [(32, 128, 4), (16, 112, 7), (8, 112, 14)])
def test_phi_shape(name: str, stride: int, side: int, cells: int) -> None:
    net = backbone(name, output_stride=stride).eval()
    with torch.no_grad():
        phi = net(images(2, side))
    assert phi.shape == (2, net.channels, cells, cells)
    assert net.stride == stride


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, "mobilenetv3_small_050"])
def test_every_parameter_reaches_phi(name: str) -> None:
    """A parameter without gradient (a left-over classifier) makes DDP fail."""
    net = backbone(name)
    net(images()).square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None] == []


def test_phi_of_a_resnet_is_after_the_last_relu_and_equals_timm() -> None:
    net = backbone("resnet18").eval()
    reference = timm.create_model("resnet18", pretrained=False, num_classes=0, global_pool="").eval()
    reference.load_state_dict(net.model.state_dict())
    with torch.no_grad():
        phi = net(images())
        torch.testing.assert_close(phi, reference(images()), rtol=1e-4, atol=1e-5)
    assert phi.min() == 0
    assert phi.max() > 0


def test_channels_last() -> None:
    net = backbone()
    assert net(images()).is_contiguous(memory_format=torch.channels_last)
    weight = net.model.layer2[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_output_stride_16_dilates_as_the_docstring_says() -> None:
    net = backbone("resnet18", output_stride=16)
    last = [module.dilation for module in net.model.layer4.modules() if isinstance(module, nn.Conv2d)]
    assert last == [
        (1, 1),
        (2, 2),
        (1, 1),
        (2, 2),
        (2, 2),
    ]  # block 0: conv1, conv2, shortcut; block 1: conv1, conv2
    assert {m.dilation for m in net.model.layer3.modules() if isinstance(m, nn.Conv2d)} == {(1, 1)}


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(FineSightError, match=r"unknown backbone 'resnet5O'\. Did you mean .*resnet5"):
        backbone("resnet5O")
    with pytest.raises(FineSightError, match=r"unknown backbone 'qqqqqq'\. Take a timm model"):
        backbone("qqqqqq")
    with pytest.raises(FineSightError, match=r"cannot build 'resnet18\.nope'"):
        backbone("resnet18.nope")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "ghostnet_050", "poolformer_s12"])
def test_models_that_cannot_change_their_stride(name: str) -> None:
    """The first refuses the argument, the second asserts, the third takes and ignores it."""
    assert backbone(name).stride == 32
    with pytest.raises(FineSightError, match=f"'{name}' cannot do output stride 16"):
        backbone(name, output_stride=16)


@pytest.mark.parametrize(("name", "names"), [("resnet18", "torchvision"), ("test_convnext", "timm")])
def test_weights_from_a_file_with_its_classifier(tmp_path: Path, name: str, names: str) -> None:
    donor = torchvision.models.resnet18() if names == "torchvision" else timm.create_model(name)
    save_file(donor.state_dict(), tmp_path / "w.safetensors")
    net = backbone(name, weights=str(tmp_path / "w.safetensors"))
    wanted = sum(not key.endswith("num_batches_tracked") for key in net.model.state_dict())
    assert net.load_report == f"{wanted} of {wanted} tensors matched ({names} names)"
    assert not net.config.stride_in_1x1
    for key, value in net.model.state_dict().items():
        assert torch.equal(value, donor.state_dict()[key]), key


def test_load_false_reads_nothing() -> None:
    for weights in ("imagenet", "/nowhere/w.safetensors"):
        config = BackboneConfig(name="resnet10t", weights=weights, stride_in_1x1=False)
        assert Backbone(config, load=False).load_report == "weights not loaded"
    undecided = BackboneConfig(name="resnet10t", weights="/nowhere/w.safetensors")
    with pytest.raises(FineSightError, match="no such file"):
        Backbone(undecided, load=False)


@pytest.mark.slow
def test_stride_in_1x1_moves_the_stride_only() -> None:
    net, plain = backbone("resnet50", stride_in_1x1=True).model, backbone("resnet50").model
    strides = [
        [(b.conv1.stride[0], b.conv2.stride[0]) for b in (*m.layer1, *m.layer2, *m.layer3, *m.layer4)]
        for m in (net, plain)
    ]
    first = {3, 7, 13}
    assert strides[0] == [(2, 1) if i in first else (1, 1) for i in range(16)]
    assert strides[1] == [(1, 2) if i in first else (1, 1) for i in range(16)]


@pytest.mark.parametrize("name", ["resnet10t", "test_convnext", "resnetaa50"])
def test_stride_in_1x1_is_for_plain_bottlenecks(name: str) -> None:
    with pytest.raises(FineSightError, match=f"stride-in-1x1 is for ResNets .* not for '{name}'"):
        backbone(name, stride_in_1x1=True)


def caffe_reference() -> nn.Module:
    """torchvision's resnet50 with the strides of each stage's first block swapped by hand."""
    model = torchvision.models.resnet50()
    missing, unexpected = model.load_state_dict(load_file(WEIGHTS), strict=False)
    assert (missing, unexpected) == (["fc.weight", "fc.bias"], [])
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return nn.Sequential(*list(model.children())[:-2]).eval()


@pytest.mark.slow
@needs_weights
def test_caffe_weights_match_fully_and_equal_torchvision_with_swapped_strides() -> None:
    net = backbone("resnet50", weights=str(WEIGHTS)).eval()
    assert net.load_report == "265 of 265 tensors matched (torchvision names)"
    assert net.config.stride_in_1x1 is True
    plain = backbone("resnet50", weights=str(WEIGHTS), stride_in_1x1=False).eval()
    with torch.no_grad():
        wanted = caffe_reference()(images(2, 96))
        torch.testing.assert_close(net(images(2, 96)), wanted, rtol=0, atol=1e-4)
        assert (plain(images(2, 96)) - wanted).abs().max() > 0.1


@pytest.mark.slow
@needs_weights
def test_caffe_weights_at_stride_16() -> None:
    net = backbone("resnet50", weights=str(WEIGHTS), output_stride=16).eval()
    blocks = (net.model.layer2[0], net.model.layer3[0], net.model.layer4[0])
    assert [(b.conv1.stride[0], b.conv2.stride[0]) for b in blocks] == [(2, 1), (2, 1), (1, 1)]
    with torch.no_grad():
        assert net(images(1, 112)).shape == (1, 2048, 7, 7)


@pytest.mark.slow
@needs_weights
def test_a_saved_config_needs_the_file_no_more() -> None:
    first = backbone("resnet50", weights=str(WEIGHTS))
    config = BackboneConfig.model_validate_json(first.config.model_dump_json())
    again = Backbone(config.model_copy(update={"weights": "/nowhere/w.safetensors"}), load=False)
    again.load_state_dict(first.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(images()), first.eval()(images()), rtol=0, atol=0)


@needs_weights
def test_the_caffe_file_says_so() -> None:
    with safe_open(WEIGHTS, "pt") as opened:
        assert opened.metadata()["style"].startswith("caffe")


FIRST_TRAINABLE = [
    ("resnet18", ["model.conv1.weight", "model.layer1.0.conv1.weight", "model.layer2.0.conv1.weight"]),
    ("resnet10t", ["model.conv1.0.weight", "model.layer1.0.conv1.weight", "model.layer2.0.conv1.weight"]),
    (
        "convnext_atto",
        ["model.stem.0.weight", "model.stages.0.blocks.0.gamma", "model.stages.1.downsample.0.weight"],
    ),
    (
        "efficientnet_lite0",
        ["model.conv_stem.weight", "model.blocks.0.0.conv_dw.weight", "model.blocks.1.0.conv_pw.weight"],
    ),
    (
        "regnetx_002",
        ["model.stem.conv.weight", "model.s1.b1.conv1.conv.weight", "model.s2.b1.conv1.conv.weight"],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "firsts"), FIRST_TRAINABLE)
@pytest.mark.parametrize("freeze", [0, 1, 2])
def test_frozen_parts_have_no_gradient_and_still_statistics(name: str, firsts: list[str], freeze: int) -> None:
    net = backbone(name, freeze=freeze)
    trainable = [n for n, p in net.named_parameters() if p.requires_grad]
    everything = [n for n, _ in net.named_parameters()]
    assert trainable == everything[everything.index(firsts[freeze]) :]

    before = buffers(net)
    net.train()
    net(images()).square().mean().backward()
    frozen = set(everything) - set(trainable)
    assert all((p.grad is None) == (n in frozen) for n, p in net.named_parameters())
    owners = {n.rpartition(".")[0] for n in frozen}
    assert moved(net, before) == {n for n in before if n.rpartition(".")[0] not in owners}


def test_freezing_survives_parents_copies_and_sync_batch_norm() -> None:
    net = copy.deepcopy(nn.SyncBatchNorm.convert_sync_batchnorm(nn.ModuleDict({"net": backbone(freeze=2)})))
    assert isinstance(net["net"].model.bn1, nn.SyncBatchNorm)
    net.eval().train()
    modes = {n: m.training for n, m in net["net"].named_modules() if isinstance(m, nn.SyncBatchNorm)}
    assert {n for n, training in modes.items() if not training} == {
        n for n in modes if n.startswith(("model.conv1", "model.bn1", "model.layer1"))
    }
    net.eval()
    assert not any(m.training for m in net.modules())


def test_frozen_norm_keeps_all_statistics_but_trains_weights() -> None:
    net = backbone("regnetx_002", frozen_norm=True)
    before = buffers(net)
    net(images()).square().mean().backward()
    assert moved(net, before) == set()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.slow
def test_freeze_beyond_the_last_stage() -> None:
    assert not any(p.requires_grad for p in backbone("resnet10t", freeze=5).parameters())
    with pytest.raises(FineSightError, match="'resnet10t' has a stem and 4 stages: freeze can be at most 5, not 6"):
        backbone("resnet10t", freeze=6)
    with pytest.raises(FineSightError, match="'densenet121' has a stem and 4 stages"):
        backbone("densenet121", freeze=6)


@pytest.mark.parametrize("bad", [{"output_stride": 4}, {"freeze": -1}, {"nmae": "resnet18"}])
def test_config_refuses(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BackboneConfig.model_validate(bad)


def test_config_is_light() -> None:
    script = "import sys, finesight.nn.backbone_config; print({'torch', 'timm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_without_dilation_the_network_is_the_plain_one_with_strides_of_one() -> None:
    """Against the stride-32 network with the strides of its last stages set to 1 by hand."""
    config = BackboneConfig(name="resnet18", weights="random", output_stride=8, dilate=False)
    plain = Backbone(config).eval()
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # timm starts residual branches at zero: dilation would not show
    by_hand = Backbone(BackboneConfig(name="resnet18", weights="random")).eval()
    for stage in (by_hand.model.layer3, by_hand.model.layer4):
        for module in stage.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.stride = (1, 1)
    dilated = Backbone(config.model_copy(update={"dilate": True})).eval()
    for other in (by_hand, dilated):
        other.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert plain(images).shape == dilated(images).shape == (2, 512, 8, 8)
        torch.testing.assert_close(plain(images), by_hand(images))
        assert not torch.allclose(dilated(images), plain(images), atol=1e-2)
