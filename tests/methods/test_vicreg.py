from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, images, normal, output_of, outputs, pictures, small
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.vicreg import covariance_parts, variance_parts
from reference import vicreg as reference


def spread(n: int, dim: int, seed: int = 0) -> Tensor:
    """Some dimensions with too little deviation, some with enough; correlated, and not centered."""
    scale = torch.tensor([0.2, 3.0, 0.5, 5.0, 0.05], dtype=torch.float64)[:dim]
    mixed = normal(n, dim, seed=seed) @ (torch.eye(dim).double() + 0.2 * normal(dim, dim, seed=seed + 1))
    return mixed * scale + normal(dim, seed=seed + 2)


def centered(z: Tensor) -> Tensor:
    return z - z.mean(0)


def plain(dim: int, **settings: float) -> Any:
    """VICReg without networks: outputs are the views themselves."""
    objective = bare("vicreg", dim, dim=max(2, dim), **settings)
    objective.head = nn.Identity()
    return objective


@given(n=st.integers(2, 5), dim=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_variance_and_covariance_against_loops(n: int, dim: int, seed: int) -> None:
    z = spread(n, dim, seed)
    variance, covariance = variance_parts(centered(z)), covariance_parts(centered(z))
    assert variance.mean().item() == pytest.approx(reference.variance(z.numpy()), rel=1e-9, abs=1e-12)
    assert covariance.mean().item() == pytest.approx(reference.covariance(z.numpy()), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(variance.numpy(), reference.variance_parts(z.numpy()), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(covariance.numpy(), reference.covariance_parts(z.numpy()), rtol=1e-9, atol=1e-11)


@given(
    n=st.integers(2, 5),
    dim=st.integers(1, 5),
    weights=st.sampled_from([(25.0, 25.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (3.0, 2.0, 5.0)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_loss_and_its_split_against_loops(n: int, dim: int, weights: tuple[float, float, float], seed: int) -> None:
    objective = plain(dim, **dict(zip(("invariance", "variance", "covariance"), weights, strict=True)))
    first, second = spread(n, dim, seed), spread(n, dim, seed + 3)
    output = output_of(objective, [images(first), images(second)])
    a, b = first.numpy(), second.numpy()
    assert output.loss.mean().item() == pytest.approx(reference.vicreg(a, b, weights), rel=1e-9, abs=1e-11)
    np.testing.assert_allclose(output.loss.numpy(), reference.parts(a, b, weights), rtol=1e-8, atol=1e-9)
    terms = [reference.invariance(a, b), (reference.variance(a) + reference.variance(b)) / 2]
    terms.append(reference.covariance(a) + reference.covariance(b))
    np.testing.assert_allclose([metric.item() for metric in output.metrics.values()], terms, rtol=1e-9, atol=1e-11)


def test_weights_are_the_papers() -> None:
    config = small("vicreg").config
    assert (config.invariance, config.variance, config.covariance) == (25, 25, 1)


def test_gradients_against_finite_differences() -> None:
    """Of the whole loss, though it is handed on in parts; both branches learn."""
    views = spread(5, 4), spread(5, 4, 9)
    for view in views:
        deviations = reference.deviations(view.numpy())
        assert min(deviations) < 1 < max(deviations)
        assert all(abs(s - 1) > 1e-3 for s in deviations)
    assert_slopes(plain(4), reference.vicreg, *views, atol=1e-6)


def test_a_deviation_above_one_is_enough() -> None:
    z = centered(normal(8, 3))
    wide = (1.01 * z / z.std(0)).requires_grad_()
    variance = variance_parts(wide)
    (slope,) = torch.autograd.grad(variance.sum(), wide)
    assert not variance.any()
    assert not slope.any()
    narrow = 0.99 * z / z.std(0)
    assert variance_parts(narrow).mean().item() == pytest.approx(1 - np.sqrt(0.99**2 + 1e-4), rel=1e-9)


def test_a_dead_dimension_costs_almost_one_and_has_a_finite_slope() -> None:
    """ε is there for this: the deviation is 0.01, not nought."""
    dead = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    variance = variance_parts(dead)
    (slope,) = torch.autograd.grad(variance.sum(), dead)
    np.testing.assert_allclose(variance.detach().numpy(), np.full(4, 0.99), rtol=1e-12)
    assert torch.isfinite(slope).all()


def test_covariance_counts_every_pair_of_different_dimensions() -> None:
    """Dimensions that are all the same, with a variance of 2: D (D − 1) covariances of 2, over D."""
    same = (1.5**0.5 * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64))[:, None].repeat(1, 5)
    assert covariance_parts(same).mean().item() == pytest.approx(4 * 2.0**2, rel=1e-12)
    assert covariance_parts(same[:, :1]).mean().item() == 0


def test_identical_views_have_no_invariance_to_learn() -> None:
    view = spread(5, 4)
    output = output_of(plain(4), [images(view), images(view)])
    assert output.metrics["invariance"].item() == 0
    expected = 25 * reference.variance(view.numpy()) + 2 * reference.covariance(view.numpy())
    assert output.loss.mean().item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_per_image_losses_against_loops_end_to_end(training: bool, n: int) -> None:
    objective, views = small("vicreg").train(training), pictures(n)
    output = output_of(objective, views)
    first, second = (outputs(objective, view).detach() for view in views)
    np.testing.assert_allclose(
        output.loss.detach().numpy(), reference.parts(first.numpy(), second.numpy()), rtol=1e-8, atol=1e-10
    )
    assert output.loss.mean().item() == pytest.approx(reference.vicreg(first.numpy(), second.numpy()), rel=1e-8)
    torch.testing.assert_close(output.embedding.detach(), F.normalize(first, dim=1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, F.normalize(second, dim=1), rtol=1e-8, atol=1e-12)
