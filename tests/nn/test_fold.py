"""Folded batch norms give the same map and the same gradients, follow the weights, and leave all else alone."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from close import largest_difference, same_rows
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.fold import FoldedModel
from finesight.nn.momentum import ema_update, momentum_copy
from small import torch_threads

FAMILIES = ["test_resnet", "test_efficientnet", "regnetx_002", "mobilenetv3_small_050", "resnetv2_18", "test_convnext"]


@torch.no_grad()
def shaken(module: nn.Module, seed: int = 0) -> None:
    """Give every norm statistics and weights that matter."""
    draw = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for tensor in (norm.running_mean, norm.bias):
                tensor.copy_(torch.randn(tensor.shape, generator=draw) / 10)
            for tensor in (norm.running_var, norm.weight):
                tensor.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)


def network(name: str = "test_resnet", **options: object) -> Backbone:
    torch.manual_seed(0)
    made = Backbone(BackboneConfig.model_validate({"name": name, "weights": "random", **options}))
    shaken(made)
    return made


def images(n: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_map(name: str) -> None:
    net = network(name).eval()
    state = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        plain, folded = net(images()), net(images(), folded=True)
        assert same_rows(folded, plain)
        shaken(net, seed=1)
        assert same_rows(net(images(), folded=True), net(images())), "it follows other weights"
        moved = [key for key, norm in net.named_modules() if isinstance(norm, nn.BatchNorm2d)]
        assert not moved or largest_difference(net(images()), plain) > 1e-2
    assert list(net.state_dict()) == list(state)


@pytest.mark.parametrize("batch", [1, 15, 16])
@pytest.mark.parametrize("name", ["resnet26", "regnetx_002", "mobilenetv3_small_050"])
def test_small_batches_of_one_thread_go_another_way_to_the_same_map(name: str, batch: int) -> None:
    net = network(name).eval()
    with torch.no_grad(), torch_threads(1):
        assert same_rows(net(images(batch), folded=True), net(images(batch)))


class Forked(nn.Module):
    """The convolution's output is normalized, and used as it is too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward_features(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        return self.norm(x) + x


class Repeated(nn.Module):
    """One norm after two convolutions, one of them without a norm at another place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(self.norm(self.conv(images))).relu())


@pytest.mark.parametrize("kind", [Forked, Repeated])
def test_a_network_that_cannot_be_folded_is_used_as_it_is(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = kind().eval()
    shaken(net)
    with torch.no_grad():
        assert torch.equal(FoldedModel(net)(images()), net.forward_features(images()))


@pytest.mark.parametrize("frozen_norm", [False, True])
def test_frozen_stages_in_training(frozen_norm: bool) -> None:
    """Map, gradients and moving statistics are those of the plain network; nothing of the frozen stages moves."""
    net = network("test_resnet", freeze=3, frozen_norm=frozen_norm).train()
    other = copy.deepcopy(net)
    for step in range(3):
        views = images(4, seed=step)
        phi, plain = net(views), other.model.forward_features(views)
        assert same_rows(phi.detach(), plain.detach())
        for one, value in ((net, phi), (other, plain)):
            one.zero_grad()
            value.square().mean().backward()
        for (name, a), b in zip(net.named_parameters(), other.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None) == (not a.requires_grad), name
            if a.grad is not None and b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max()))
        with torch.no_grad():
            for one in (net, other):
                for parameter in one.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=0.1)
    for (name, a), b in zip(net.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    start = network("test_resnet", freeze=3).state_dict()
    trained = {name for name, value in net.state_dict().items() if not torch.equal(value, start[name])}
    assert trained
    assert all(".layer1." not in name and ".conv1." not in name[:12] for name in trained)


def test_a_momentum_copy_of_frozen_stages() -> None:
    """Its own weights are folded as they are after every update; what is frozen is not updated, and stays equal."""
    net = network("test_resnet", freeze=2, frozen_norm=True).train()
    twin = momentum_copy(net).train()
    with torch.no_grad():
        first = twin(images())
        for step in range(2):
            for parameter in net.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step)) / 10)
            ema_update(twin, net, 0.5)
            assert same_rows(twin(images()), twin.model.forward_features(images()))
    assert not same_rows(twin(images()), first)
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b) == (not a.requires_grad), name


def test_without_frozen_stages_training_keeps_its_bits() -> None:
    for options in ({}, {"frozen_norm": True}):
        net = network("test_resnet", **options).train()
        twin = momentum_copy(net).train()
        other = copy.deepcopy(net)
        assert torch.equal(net(images()), other.model.forward_features(images()))
        with torch.no_grad():
            assert torch.equal(twin(images()), copy.deepcopy(twin).model.forward_features(images()))
    net = network("test_resnet", freeze=3, frozen_norm=True).eval()
    assert torch.equal(net(images()), net.model.forward_features(images())), "nor does an encoder that is exact change"


class Stacked(nn.Module):
    """A frozen convolution with its norm, then a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Conv2d(4, 2, 1)
        for part in (self.conv, self.bn):
            part.requires_grad_(False)

    def forward_features(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(self.bn(self.conv(images)).relu())
        return found


@pytest.mark.slow
def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same map and gradients by torch.compile, also of a copy, which has weights of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # code for other instructions may be in the user's
    torch.manual_seed(0)
    net = Stacked()
    shaken(net)
    net.bn.eval()
    first = FoldedModel(net, frozen_only=True, compiled=True)
    for folded in (first, copy.deepcopy(first)):
        own = folded.model
        assert isinstance(own, Stacked)
        for _ in range(2):
            phi, plain = folded(images()), own.forward_features(images())
            torch.testing.assert_close(phi, plain, rtol=1e-4, atol=1e-5)
            (a,), (b,) = (torch.autograd.grad(x.square().sum(), [own.last.weight]) for x in (phi, plain))
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))
            with torch.no_grad():
                own.last.weight.add_(0.1)


def test_a_backbone_compiles_what_training_calls() -> None:
    """Nothing is compiled here: torch is told to run all code as it is, and the wiring is what is tested."""
    net = network("test_resnet").train()
    net.compile_features()
    with torch.compiler.set_stance("force_eager"):
        other = copy.deepcopy(net)
        assert torch.equal(net(images()), other.model.forward_features(images()))
