import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, normal, output_of, outputs, pictures, small, units
from torch.nn import functional as F

from finesight.methods.simclr import nt_xent
from reference.simclr import nt_xent as reference


@given(
    n=st.integers(1, 4),
    dim=st.integers(1, 5),
    temperature=st.sampled_from([0.01, 0.1, 0.5, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_nt_xent_against_loops(n: int, dim: int, temperature: float, seed: int) -> None:
    a, b = units(n, dim, seed=seed), units(n, dim, seed=seed + 1)
    expected = reference(a.numpy(), b.numpy(), temperature)
    np.testing.assert_allclose(nt_xent(a, b, temperature).numpy(), expected, rtol=1e-9, atol=1e-12 / temperature)


def test_a_single_image_has_nothing_to_be_confused_with() -> None:
    a, b = units(1, 4).requires_grad_(), units(1, 4, seed=1)
    loss = nt_xent(a, b, 0.1)
    (slope,) = torch.autograd.grad(loss.sum(), a)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(slope.numpy(), np.zeros((1, 4)), atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_identical_vectors_cost_the_logarithm_of_the_choice(n: int) -> None:
    """2N − 1 candidates that cannot be told apart: the view itself is none of them."""
    same = units(1, 4).repeat(n, 1)
    np.testing.assert_allclose(nt_xent(same, same, 0.1).numpy(), np.full(n, math.log(2 * n - 1)), rtol=1e-10)


def test_identical_views_of_orthogonal_images() -> None:
    """Each anchor has its partner at 1 and 2N − 2 others at 0."""
    axes = torch.eye(3, dtype=torch.float64)
    expected = math.log(1 + 4 * math.exp(-1 / 0.5))
    np.testing.assert_allclose(nt_xent(axes, axes, 0.5).numpy(), np.full(3, expected), rtol=1e-10)


def test_the_views_are_interchangeable() -> None:
    a, b = units(4, 3), units(4, 3, seed=1)
    torch.testing.assert_close(nt_xent(a, b, 0.1), nt_xent(b, a, 0.1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("temperature", [1e-3, 1e-5])
def test_extreme_logits_in_single_precision(temperature: float) -> None:
    axes = torch.eye(2)
    best = nt_xent(axes.requires_grad_(), axes.detach(), temperature)
    (slope,) = torch.autograd.grad(best.sum(), axes)
    worst = nt_xent(axes.detach(), -axes.detach(), temperature)
    np.testing.assert_allclose(best.detach().numpy(), [0, 0], atol=1e-5)
    assert torch.isfinite(slope).all()
    np.testing.assert_allclose(worst.numpy(), np.full(2, 1 / temperature + math.log(2)), rtol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_per_image_losses_against_loops_end_to_end(training: bool, n: int) -> None:
    objective, views = small("simclr", temperature=0.2).train(training), pictures(n)
    output = output_of(objective, views)
    a, b = (F.normalize(outputs(objective, view), dim=1).detach() for view in views)
    np.testing.assert_allclose(output.loss.detach().numpy(), reference(a.numpy(), b.numpy(), 0.2), rtol=1e-8)
    torch.testing.assert_close(output.embedding.detach(), a, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, b, rtol=1e-8, atol=1e-12)
    assert output.metrics["positive_similarity"].item() == pytest.approx((a * b).sum(1).mean().item(), rel=1e-8)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_gradients_against_finite_differences(temperature: float) -> None:
    """Of the mean loss, in both views, unit length and all: an anchor's negatives learn too."""
    objective = bare("simclr", 4, temperature=temperature)
    objective.head = torch.nn.Identity()

    def loss(x: np.ndarray, y: np.ndarray) -> float:
        a, b = (z / np.sqrt((z**2).sum(1, keepdims=True)) for z in (x, y))
        return float(reference(a, b, temperature).mean())

    assert_slopes(objective, loss, normal(3, 4), normal(3, 4, seed=1), atol=1e-7)
