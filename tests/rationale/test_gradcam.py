import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.moco import info_nce
from finesight.rationale.gradcam import map_gradcam, pooled_gradcam
from reference.gradcam import average, cam, differences
from reference.infonce import head as head_reference
from reference.infonce import info_nce as info_nce_reference

N, C, H, W, D, TEMPERATURE = 3, 5, 3, 4, 6, 0.2


class Scene:
    """φ, a small head, keys and a queue in float64, and the per-image scores they give."""

    def __init__(self, seed: int = 0, *, bias: bool = True) -> None:
        torch.manual_seed(seed)
        self.phi = torch.rand(N, C, H, W, dtype=torch.float64).requires_grad_()
        self.head = nn.Sequential(nn.Linear(C, 8, bias=bias), nn.ReLU(), nn.Linear(8, D, bias=bias)).double()
        self.keys, self.queue = (F.normalize(torch.randn(n, D, dtype=torch.float64), dim=1) for n in (N, 7))
        self.pooled = self.phi.mean((2, 3))

    def scores(self) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.head(self.pooled), dim=1)
        loss, positive, _ = info_nce(q, self.keys, self.queue, TEMPERATURE)
        return loss, positive

    def loss_of(self, phi: np.ndarray) -> float:
        layers = [
            (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in (self.head[0], self.head[2])
        ]
        q = head_reference(average(phi), layers)
        return float(info_nce_reference(q, self.keys.numpy(), self.queue.numpy(), TEMPERATURE).sum())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("which", [0, 1], ids=["loss", "positive"])
def test_pooled_gradient_gives_what_autograd_gives_on_the_whole_map(seed: int, which: int) -> None:
    scene = Scene(seed)
    score = scene.scores()[which]
    signed = pooled_gradcam(scene.phi, scene.pooled, score)
    (slope,) = torch.autograd.grad(score.sum(), scene.phi, retain_graph=True)
    expected = cam(scene.phi.detach().numpy(), slope.numpy())
    np.testing.assert_allclose(signed.detach().numpy(), expected, rtol=0, atol=1e-10 * abs(expected).max())
    whole = map_gradcam(scene.phi, score)
    np.testing.assert_allclose(whole.detach().numpy(), expected, rtol=0, atol=1e-10 * abs(expected).max())


def test_gradcam_is_what_nudging_phi_measures() -> None:
    scene = Scene()
    signed = pooled_gradcam(scene.phi, scene.pooled, scene.scores()[0]).detach().numpy()
    phi = scene.phi.detach().numpy()
    expected = cam(phi, differences(scene.loss_of, phi))
    np.testing.assert_allclose(signed, expected, rtol=0, atol=1e-7 * abs(expected).max())
    assert abs(expected).max() > 1e-3


def test_full_map_gradient_where_the_score_sees_more_than_the_average() -> None:
    scene = Scene()
    weights = torch.rand(H, W, dtype=torch.float64)

    def score(phi: Tensor) -> Tensor:
        return (phi * weights).sum((1, 2, 3)).sin()

    signed = map_gradcam(scene.phi, score(scene.phi)).detach().numpy()
    phi = scene.phi.detach().numpy()
    expected = cam(phi, differences(lambda x: float(score(torch.from_numpy(x)).sum()), phi))
    np.testing.assert_allclose(signed, expected, rtol=0, atol=1e-7 * abs(expected).max())


def test_the_gradient_inside_is_a_constant_and_phi_is_not() -> None:
    """G = φ · stopgrad(∂s/∂φ): its derivative is that gradient, with no second order."""
    scene = Scene()
    loss = scene.scores()[0]
    (slope,) = torch.autograd.grad(loss.sum(), scene.phi, retain_graph=True)
    for signed in (pooled_gradcam(scene.phi, scene.pooled, loss), map_gradcam(scene.phi, loss)):
        (inner,) = torch.autograd.grad(signed.sum(), scene.phi, retain_graph=True)
        torch.testing.assert_close(inner, slope, rtol=1e-12, atol=1e-15)


def test_the_loss_can_still_be_differentiated_afterwards() -> None:
    scene, untouched = Scene(), Scene()
    loss = scene.scores()[0]
    pooled_gradcam(scene.phi, scene.pooled, loss)
    map_gradcam(scene.phi, loss)
    assert scene.phi.grad is None
    assert all(p.grad is None for p in scene.head.parameters())
    loss.sum().backward()
    untouched.scores()[0].sum().backward()
    assert torch.equal(scene.phi.grad, untouched.phi.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_single_precision_under_autocast(dtype: torch.dtype) -> None:
    """φ is half precision there; products and sums over it must not be."""
    torch.manual_seed(0)
    phi = torch.rand(2, 512, 3, 3).to(dtype).requires_grad_()
    weight = torch.randn(512) * 1e-4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = phi.mean((2, 3), dtype=torch.float32)
        score = (pooled.double() * weight.double()).sum(1)
        signed = pooled_gradcam(phi, pooled, score)
        whole = map_gradcam(phi, (phi * weight[:, None, None]).double().sum((1, 2, 3)))
    exact = torch.einsum("c,nchw->nhw", weight.double(), phi.detach().double())
    assert signed.dtype == whole.dtype == torch.float32
    torch.testing.assert_close(signed.double(), exact / 9, rtol=0, atol=3e-6 * float(exact.abs().max()))
    half_gradient = torch.einsum("c,nchw->nhw", weight.to(dtype).double(), phi.detach().double())
    torch.testing.assert_close(whole.double(), half_gradient, rtol=0, atol=3e-6 * float(exact.abs().max()))
