from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, images, normal, output_of, outputs, pictures, small
from torch import nn
from torch.nn import functional as F

from reference.byol import simsiam as reference


def plain(dim: int, seed: int = 0, stop_gradient: bool = True) -> tuple[Any, np.ndarray, np.ndarray]:
    """SimSiam without networks: outputs are the views themselves, the prediction a linear map of them."""
    objective = bare("simsiam", dim, dim=dim, stop_gradient=stop_gradient)
    objective.head, objective.predictor = nn.Identity(), nn.Linear(dim, dim).double()
    with torch.no_grad():
        objective.predictor.weight.copy_(normal(dim, dim, seed=seed))
        objective.predictor.bias.copy_(normal(dim, seed=seed + 10))
    return objective, objective.predictor.weight.detach().numpy(), objective.predictor.bias.detach().numpy()


@given(n=st.integers(1, 4), dim=st.integers(1, 5), seed=st.integers(0, 1000), stop=st.booleans())
@settings(max_examples=40, deadline=None)
def test_loss_against_loops(n: int, dim: int, seed: int, stop: bool) -> None:
    objective, weight, bias = plain(dim, seed, stop)
    first, second = normal(n, dim, seed=seed + 2), normal(n, dim, seed=seed + 3)
    output = output_of(objective, [images(first), images(second)])
    x, y = first.numpy(), second.numpy()
    expected = reference((x @ weight.T + bias, y @ weight.T + bias), (x, y))
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    assert output.metrics["positive_similarity"].item() == pytest.approx(-expected.mean(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("stop", [True, False])
def test_gradients_against_finite_differences(stop: bool) -> None:
    """With the stop-gradient, of a loss whose targets stay where they are; without, of one whose targets move too."""
    objective, weight, bias = plain(4, stop_gradient=stop)
    x, y = normal(3, 4, seed=5), normal(3, 4, seed=6)

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        targets = (x.numpy(), y.numpy()) if stop else (a, b)
        return float(reference((a @ weight.T + bias, b @ weight.T + bias), targets).mean())

    assert_slopes(objective, loss, x, y)


def test_identical_views_and_a_predictor_that_changes_nothing_reach_the_minimum() -> None:
    objective, _, _ = plain(4)
    objective.predictor = nn.Identity()
    same = images(normal(3, 4))
    np.testing.assert_allclose(output_of(objective, [same, same]).loss.numpy(), np.full(3, -1.0), rtol=1e-12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_per_image_losses_against_loops_end_to_end(training: bool, n: int) -> None:
    objective, views = small("simsiam").train(training), pictures(n)
    output = output_of(objective, views)
    z = [outputs(objective, view).detach() for view in views]
    p = [objective.predictor(each).detach() for each in z]
    expected = reference((p[0].numpy(), p[1].numpy()), (z[0].numpy(), z[1].numpy()))
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.embedding.detach(), F.normalize(z[0], dim=1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, F.normalize(z[1], dim=1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.positive.detach(), F.cosine_similarity(p[0], z[1]), rtol=1e-8, atol=1e-12)


def test_the_stop_gradient_changes_all_but_the_predictor() -> None:
    """The loss is the same with and without; what the encoder learns from it is not."""
    still, moving = (small("simsiam", stop_gradient=stop) for stop in (True, False))
    losses = [output_of(objective, pictures()).loss for objective in (still, moving)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.mean().backward()
    for (name, one), other in zip(still.named_parameters(), moving.parameters(), strict=True):
        same = torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-13)
        assert same == name.startswith("predictor."), name


def test_the_predictors_rate_is_constant() -> None:
    objective = small("simsiam")
    groups = objective.head_groups()
    assert [group.constant for group in groups] == [False, True]
    head, predictor = (list(group.params) for group in groups)
    assert head == list(objective.head.parameters())
    assert predictor == list(objective.predictor.parameters())
    assert all(group.freeze_epochs == 0 for group in groups)
