import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from finesight.nn.heads import projector
from reference.infonce import head as head_reference


def numbers(layer: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def test_two_layers_are_linear_relu_linear() -> None:
    torch.manual_seed(0)
    head = projector("2-layer", 6, 8, 4).double()
    u = torch.randn(5, 6, dtype=torch.float64)
    assert [tuple(p.shape) for p in head.parameters()] == [(8, 6), (8,), (4, 8), (4,)]
    expected = head_reference(u.numpy(), [numbers(head[0]), numbers(head[2])])
    np.testing.assert_allclose(F.normalize(head(u), dim=1).detach().numpy(), expected, rtol=1e-10)


def test_three_layers_end_with_batch_norm() -> None:
    torch.manual_seed(0)
    head = projector("3-layer-bn", 6, 8, 4).double()
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    assert [type(layer) for layer in head] == kinds
    assert [tuple(p.shape) for p in head.parameters()] == [(8, 6), (8,), (8, 8), (8,), (4, 8), (4,), (4,), (4,)]
    u = torch.randn(50, 6, dtype=torch.float64)
    x = u.numpy()
    for place in (0, 2):
        weight, bias = numbers(head[place])
        x = np.maximum(0, x @ weight.T + bias)
    weight, bias = numbers(head[4])
    x = x @ weight.T + bias
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(head(u).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["2-layer", "3-layer-bn"])
def test_every_weight_gets_a_gradient_and_the_input_is_kept(kind: str) -> None:
    head = projector(kind, 6, 8, 4)
    u = torch.randn(5, 6)
    before = u.clone()
    head(u).square().sum().backward()
    assert all(p.grad is not None for p in head.parameters())
    assert torch.equal(u, before)
