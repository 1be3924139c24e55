import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, normal, output_of, outputs, pictures, small
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.barlow_twins import barlow
from reference.barlow import barlow as reference
from reference.barlow import correlation, parts, standardized


def alike(n: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two standardized outputs that have half in common."""
    shared = normal(n, dim, seed=seed)
    a, b = (standardized((shared + normal(n, dim, seed=seed + i)).numpy()) for i in (1, 2))
    return torch.from_numpy(a), torch.from_numpy(b)


@given(
    n=st.integers(2, 5),
    dim=st.integers(1, 5),
    off_diagonal=st.sampled_from([0.0, 0.0051, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_loss_and_its_split_against_loops(n: int, dim: int, off_diagonal: float, seed: int) -> None:
    a, b = alike(n, dim, seed)
    loss, c = barlow(a, b, off_diagonal)
    x, y = a.numpy(), b.numpy()
    assert loss.mean().item() == pytest.approx(reference(x, y, off_diagonal), rel=1e-9, abs=1e-11)
    np.testing.assert_allclose(loss.numpy(), parts(x, y, off_diagonal), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(c.numpy(), correlation(x, y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_off_diagonal_counts_every_pair_of_different_dimensions(dim: int) -> None:
    """Dimensions that are all the same: C is one everywhere, and D (D − 1) ones are too many."""
    same = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None].repeat(1, dim)
    loss, c = barlow(same, same, 0.0051)
    assert torch.equal(c, torch.ones(dim, dim, dtype=torch.float64))
    assert loss.mean().item() == pytest.approx(0.0051 * dim * (dim - 1), rel=1e-12)


def test_diagonal_counts_every_dimension_once() -> None:
    """Views that have nothing in common: each dimension lacks one; opposite views: two, squared."""
    signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    crossed = torch.stack([signs.prod(1)] * 2, 1)
    assert barlow(signs, crossed, 0.5)[0].mean().item() == pytest.approx(2, rel=1e-12)
    assert barlow(signs, -signs, 0.5)[0].mean().item() == pytest.approx(8, rel=1e-12)
    assert barlow(signs, signs, 0.5)[0].mean().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("n", [2, 5])
def test_per_image_losses_against_loops_end_to_end(n: int) -> None:
    objective, views = small("barlow-twins", off_diagonal=0.2).train(), pictures(n)
    output = output_of(objective, views)
    first, second = (outputs(objective, view).detach() for view in views)
    a, b = standardized(first.numpy()), standardized(second.numpy())
    np.testing.assert_allclose(output.loss.detach().numpy(), parts(a, b, 0.2), rtol=1e-8, atol=1e-10)
    assert output.loss.mean().item() == pytest.approx(reference(a, b, 0.2), rel=1e-8)
    torch.testing.assert_close(output.embedding.detach(), F.normalize(first, dim=1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, F.normalize(second, dim=1), rtol=1e-8, atol=1e-12)
    c = correlation(a, b)
    others = c[~np.eye(6, dtype=bool)]
    assert output.metrics["diagonal"].item() == pytest.approx(np.diag(c).mean(), rel=1e-8)
    assert output.metrics["off_diagonal"].item() == pytest.approx(np.sqrt((others**2).mean()), rel=1e-7)


def test_gradient_through_the_standardization_against_finite_differences() -> None:
    """Moving one image moves the mean and the deviation of all of them, and both views learn."""
    objective = bare("barlow-twins", 3, dim=3, off_diagonal=0.3).train()
    objective.head = nn.Identity()
    first = normal(4, 3)
    second = first + normal(4, 3, seed=1)
    assert_slopes(objective, lambda a, b: reference(standardized(a), standardized(b), 0.3), first, second)


def test_identical_views_pay_for_redundancy_alone() -> None:
    objective, view = small("barlow-twins").train(), pictures(6)[0]
    output = output_of(objective, [view, view])
    a = standardized(outputs(objective, view).detach().numpy())
    assert output.metrics["diagonal"].item() == pytest.approx(1, abs=0.01)
    assert output.loss.mean().item() == pytest.approx(reference(a, a, 0.0051), rel=1e-8)
    assert reference(a, a, 0.0051) > 10 * reference(a, a, 0.0)
