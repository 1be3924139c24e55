"""Low-rank updates of attention: what learns, what stays, and the plain network that is left when they are merged."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.momentum import ema_update, momentum_copy

RANK = 3


def network(name: str = "test_vit", **settings: object) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig(name=name, weights="random", **settings))  # type: ignore[arg-type]


def images(side: int = 64, n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def trained(net: Backbone) -> dict[str, torch.nn.Parameter]:
    return {name.removeprefix("model."): p for name, p in net.named_parameters() if p.requires_grad}


def updated(**settings: object) -> Backbone:
    """A network whose updates are not zero any more."""
    net, generator = network(lora=RANK, **settings), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in trained(net).values():
            parameter.normal_(std=0.1, generator=generator)
    return net


def test_the_network_begins_as_it_is_and_only_the_updates_of_free_blocks_learn() -> None:
    plain, net = network(freeze=3).eval(), network(freeze=3, lora=RANK).eval()
    with torch.no_grad():
        assert torch.equal(net(images()), plain(images()))
    net.train()
    net(images()).square().sum().backward()
    names = {
        f"blocks.{b}.attn.{layer}.lora_{m}.default.weight"
        for b in (2, 3, 4, 5)
        for layer in ("qkv", "proj")
        for m in "AB"
    }
    assert trained(net).keys() == names
    assert all(p.grad is not None for p in trained(net).values()), "a parameter without gradient makes DDP fail"
    assert all(p.grad is None for p in net.parameters() if not p.requires_grad)
    assert all(RANK in p.shape for p in trained(net).values())


def test_the_merged_network_is_plain_and_computes_the_same() -> None:
    net = updated(freeze=2).eval()
    merged = net.merged()
    with torch.no_grad():
        torch.testing.assert_close(merged(images()), net(images()), rtol=1e-5, atol=1e-5)
        assert (merged(images()) - network()(images())).abs().max() > 1e-2
    plain = Backbone(merged.config, load=False).eval()
    assert plain.config.lora == 0
    plain.load_state_dict(merged.state_dict())
    with torch.no_grad():
        assert torch.equal(plain(images()), merged(images()))
        assert torch.equal(merged(images(), folded=True), merged(images()))
    assert net.config.lora == RANK, "the network that learns stays as it is"
    assert trained(net)


@pytest.mark.parametrize("alpha", [None, 12.0])
def test_merged_weights_against_numpy(alpha: float | None) -> None:
    net = updated(lora_alpha=alpha)
    before, after = network().model.state_dict(), net.merged().model.state_dict()
    updates = {name: p.detach().double().numpy() for name, p in trained(net).items()}
    for name, weight in after.items():
        layer = name.removesuffix(".weight")
        expected = before[name].double().numpy()
        if f"{layer}.lora_A.default.weight" in updates:
            scale = 1.0 if alpha is None else alpha / RANK
            a, b = (updates[f"{layer}.lora_{m}.default.weight"] for m in "AB")
            expected = expected + scale * np.einsum("or,ri->oi", b, a)
        np.testing.assert_allclose(weight.double().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert len(updates) == 6 * 2 * 2


def test_the_momentum_copy_follows_the_updates() -> None:
    net = updated(freeze=2)
    twin = momentum_copy(network(freeze=2, lora=RANK))
    start = {name: p.clone() for name, p in twin.named_parameters()}
    ema_update(twin, net, 0.9)
    online = dict(net.named_parameters())
    for name, p in twin.named_parameters():
        assert not p.requires_grad
        expected = 0.9 * start[name] + 0.1 * online[name].detach() if online[name].requires_grad else start[name]
        torch.testing.assert_close(p, expected)
    merged = twin.merged().eval()
    with torch.no_grad():
        torch.testing.assert_close(merged(images()), twin.eval()(images()), rtol=1e-5, atol=1e-5)


def test_without_lora_merging_gives_the_network_itself() -> None:
    net = network()
    assert net.merged() is net


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"), [("swin_tiny_patch4_window7_224", 64), ("beitv2_base_patch16_224", 224), ("levit_128s", 224)]
)
def test_other_families(name: str, side: int) -> None:
    """BEiT reads the weights of qkv without calling the layer: only its output projection learns. LeViT has norms."""
    net = updated(name=name)
    statistics = {key: value.clone() for key, value in net.named_buffers()}
    net.train()
    net(images(side)).square().sum().backward()
    assert all(p.grad is not None for p in trained(net).values())
    assert all(torch.equal(value, statistics[key]) for key, value in net.named_buffers())
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(net.merged()(images(side)), net(images(side)), rtol=1e-4, atol=1e-4)
    layers = {key.split(".lora_")[0].rpartition(".")[2] for key in trained(net)}
    assert layers == {"swin": {"qkv", "proj"}, "beit": {"proj"}, "levi": {"linear"}}[name[:4]]


def test_networks_that_lora_cannot_update() -> None:
    with pytest.raises(FineSightError, match=r"backbone\.lora is for networks with attention.*'test_resnet' has none"):
        network("test_resnet", lora=RANK)
    with pytest.raises(FineSightError, match="trains nothing of 'test_vit', which has a stem and 6 blocks"):
        network(lora=RANK, freeze=7)


def test_without_the_package() -> None:
    """The package is hidden from a process of its own."""
    program = (
        "import sys; sys.modules['peft'] = None\n"
        "from finesight.nn.backbone import Backbone, BackboneConfig\n"
        "from finesight.errors import FineSightError\n"
        "try:\n    Backbone(BackboneConfig(name='test_vit', weights='random', lora=2))\n"
        "except FineSightError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == "backbone.lora needs peft: pip install finesight[lora]"


def test_updates_learn_what_they_can_hold() -> None:
    """The map of a network whose attention differs by matrices of a smaller rank."""
    other, net, generator = network().eval(), network(lora=RANK).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in other.model.named_parameters():
            if name.endswith("attn.proj.weight"):
                thin = [torch.randn(side, RANK - 1, generator=generator) for side in weight.shape]
                weight += 0.05 * thin[0] @ thin[1].T
        target = other(images())
    optimizer = torch.optim.AdamW(trained(net).values(), lr=1e-2, weight_decay=0)
    losses = []
    for _ in range(30):
        loss = (net(images()) - target).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]
