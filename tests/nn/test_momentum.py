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


def test_twin_is_an_equal_copy_of_its_own() -> None:
    online = network()
    randomize(online)
    twin = momentum_copy(online)
    for (name, a), (_, b) in zip(online.state_dict().items(), twin.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
        assert a.data_ptr() != b.data_ptr()
