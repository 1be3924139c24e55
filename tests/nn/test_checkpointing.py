"""Activation checkpointing: the same maps, gradients and batch statistics from less memory, or a clear refusal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.momentum import momentum_copy
from small import small_module, take_step

FAMILIES = {
    "test_vit": 32,
    "test_resnet": 32,
    "test_convnext": 32,
    "test_efficientnet": 32,
    "test_nfnet": 32,
    "test_mambaout": 32,
}


def pair(name: str, **options: Any) -> tuple[Backbone, Backbone]:
    torch.manual_seed(0)
    plain = Backbone(BackboneConfig.model_validate({"name": name, "weights": "random", **options}))
    other = copy.deepcopy(plain)
    other.checkpoint_activations()
    return plain, other


def images(side: int, count: int = 4) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def kept_bytes(network: Backbone, views: Tensor) -> tuple[Tensor, int]:
    """Return φ, and the bytes that are kept for the backward pass."""
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        phi = network(views)
    return phi, sum(kept.values())


def gradients(network: Backbone, phi: Tensor) -> dict[str, Tensor]:
    """Return them after a gradient at φ that keeps the graph, as GradCAM takes it, and a backward pass."""
    weights = torch.linspace(-1, 1, phi.numel()).view(phi.shape)
    loss = (phi.square() * weights).sum()
    (cam,) = torch.autograd.grad(loss, phi, retain_graph=True)
    torch.testing.assert_close(cam, 2 * phi * weights)
    loss.backward()
    return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_gradients_and_statistics_are_the_same_from_less_memory(name: str) -> None:
    views, found = images(FAMILIES[name]), []
    for network in pair(name):
        torch.manual_seed(2)  # of dropped paths
        phi, memory = kept_bytes(network, views)
        found.append((phi.detach(), gradients(network, phi), dict(network.named_buffers()), memory))
    (phi, grads, statistics, memory), (phi2, grads2, statistics2, memory2) = found
    torch.testing.assert_close(phi2, phi, rtol=1e-6, atol=1e-6)
    assert grads.keys() == grads2.keys()
    for part in grads:
        torch.testing.assert_close(grads2[part], grads[part], rtol=1e-6, atol=1e-6 * float(grads[part].abs().max()))
    for part, values in statistics.items():
        assert torch.equal(statistics2[part], values), part  # each batch is counted once
    assert memory2 < 0.8 * memory


@pytest.mark.parametrize(("name", "freeze"), [("test_resnet", 2), ("test_vit", 3)])
def test_with_frozen_stages_folded(name: str, freeze: int) -> None:
    first, second = (gradients(network, network(images(32))) for network in pair(name, freeze=freeze, frozen_norm=True))
    assert first.keys() == second.keys()
    assert 0 < len(first) < len(list(pair(name)[0].parameters()))
    for part in first:
        torch.testing.assert_close(second[part], first[part], rtol=1e-5, atol=1e-6 * float(first[part].abs().max()))


def test_a_momentum_copy_and_a_network_in_use_are_as_ever() -> None:
    plain, other = pair("test_resnet")
    for network in (plain, other):
        with torch.no_grad():
            momentum_copy(network)(images(32))
            network(images(32))
        network.eval()
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), other.state_dict().values(), strict=True))
    with torch.no_grad():
        torch.testing.assert_close(other(images(32)), plain(images(32)), rtol=0, atol=0)
        torch.testing.assert_close(other(images(32), folded=True), plain(images(32), folded=True), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["lcr", "byol-lcr", "dino"])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_training_steps_are_the_same(method: str, name: str) -> None:
    settings = {"backbone.name": name, "backbone.output_stride": 32, "views.local_resolution": 16}
    modules = [small_module(method, **settings) for _ in range(2)]
    modules[1].checkpoint_activations()
    losses = []
    for module in modules:
        for step in range(2):
            take_step(module, step)
            losses.append(module.metrics["loss"])
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-6)
    states = [module.state_dict() for module in modules]
    for part, values in states[0].items():
        torch.testing.assert_close(
            states[1][part], values, rtol=1e-5, atol=1e-6, msg=lambda text, part=part: f"{part}: {text}"
        )


def test_a_network_that_cannot() -> None:
    network = Backbone(BackboneConfig(name="convit_tiny", weights="random"), load=False)
    with pytest.raises(
        FineSightError, match=r"no activation checkpointing for 'convit_tiny'.*--accumulate-grad-batches"
    ):
        network.checkpoint_activations()
