import numpy as np
import pytest
import torch
from torch import nn

from finesight.nn.momentum import ema_update, momentum_copy
from reference.momentum import averaged


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)).double()


def randomize(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99, 0.999, 1.0])
def test_moving_average_against_loops(momentum: float) -> None:
    online = network()
    twin = momentum_copy(online)
    begun = [p.detach().numpy().copy() for p in online.parameters()]
    history: list[list[np.ndarray]] = []
    for _ in range(5):
        randomize(online)
        history.append([p.detach().numpy().copy() for p in online.parameters()])
        ema_update(twin, online, momentum)
    for i, parameter in enumerate(twin.parameters()):
        expected = averaged([weights[i] for weights in history], begun[i], momentum)
        np.testing.assert_allclose(parameter.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_buffers_of_both_stay_as_they_are() -> None:
    online = network()
    twin = momentum_copy(online)
    randomize(online)
    randomize(twin)
    kept = [{k: v.clone() for k, v in m.named_buffers()} for m in (online, twin)]
    weights = [p.clone() for p in online.parameters()]
    ema_update(twin, online, 0.5)
    for module, before in zip((online, twin), kept, strict=True):
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.named_buffers())
    assert all(torch.equal(a, b) for a, b in zip(online.parameters(), weights, strict=True))


def test_twin_is_an_equal_copy_of_its_own() -> None:
    online = network()
    randomize(online)
    twin = momentum_copy(online)
    for (name, a), (_, b) in zip(online.state_dict().items(), twin.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
        assert a.data_ptr() != b.data_ptr()


def test_twin_never_requires_gradient_and_the_online_network_keeps_its_own() -> None:
    online = network()
    twin = momentum_copy(online)
    assert all(p.requires_grad for p in online.parameters())
    for _ in range(2):
        assert not any(p.requires_grad for p in twin.parameters())
        ema_update(twin, online, 0.9)
        twin.train()
    images = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    (online(images) - twin(images)).square().sum().backward()
    assert all(p.grad is None for p in twin.parameters())
    assert all(p.grad is not None for p in online.parameters())
