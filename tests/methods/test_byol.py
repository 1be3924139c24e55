from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, images, normal, output_of, outputs, pictures, small
from torch import nn
from torch.nn import functional as F

from reference.byol import byol as reference

Layer = tuple[np.ndarray, np.ndarray]


def plain(dim: int, seed: int = 0) -> tuple[Any, Layer, Layer]:
    """BYOL without networks: outputs are the views themselves, prediction and target two linear maps of them."""
    objective = bare("byol", dim, dim=dim)
    objective.head = nn.Identity()
    maps = []
    for name, place in (("predictor", seed), ("twin_head", seed + 1)):
        linear = nn.Linear(dim, dim).double()
        with torch.no_grad():
            linear.weight.copy_(normal(dim, dim, seed=place))
            linear.bias.copy_(normal(dim, seed=place + 10))
        setattr(objective, name, linear)
        maps.append((linear.weight.detach().numpy(), linear.bias.detach().numpy()))
    return objective, maps[0], maps[1]


def linear(layer: Layer, x: np.ndarray) -> np.ndarray:
    weight, bias = layer
    return np.array([weight @ row + bias for row in x])


@given(n=st.integers(1, 4), dim=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_loss_against_loops(n: int, dim: int, seed: int) -> None:
    objective, predictor, target = plain(dim, seed)
    first, second = normal(n, dim, seed=seed + 2), normal(n, dim, seed=seed + 3)
    output = output_of(objective, [images(first), images(second)])
    x, y = first.numpy(), second.numpy()
    expected = reference((linear(predictor, x), linear(predictor, y)), (linear(target, x), linear(target, y)))
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-9, atol=1e-11)
    assert output.metrics["positive_similarity"].item() == pytest.approx(1 - expected.mean() / 4, abs=1e-11)


def test_gradients_against_finite_differences_with_still_targets() -> None:
    """The targets depend on the views, but send nothing back."""
    objective, predictor, target = plain(4)
    views = normal(3, 4, seed=5), normal(3, 4, seed=6)
    still = [linear(target, view.numpy()) for view in views]

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        return float(reference((linear(predictor, a), linear(predictor, b)), (still[0], still[1])).mean())

    assert_slopes(objective, loss, *views)


@pytest.mark.parametrize(("factor", "expected"), [(3.0, 0.0), (-0.5, 8.0)])
def test_loss_is_nought_for_the_right_direction_and_eight_for_the_opposite(factor: float, expected: float) -> None:
    """Whatever the length: 2 − 2 cos, both ways."""
    objective = bare("byol", 4, dim=4)
    objective.head = objective.predictor = nn.Identity()
    objective.twin_head = nn.Linear(4, 4, bias=False).double()
    objective.twin_head.weight.data = factor * torch.eye(4, dtype=torch.float64)
    same = images(normal(3, 4))
    loss = output_of(objective, [same, same]).loss
    np.testing.assert_allclose(loss.numpy(), np.full(3, expected), atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_per_image_losses_against_loops_end_to_end(training: bool, n: int) -> None:
    objective, views = small("byol").train(training), pictures(n)
    output = output_of(objective, views)
    embeddings = [outputs(objective, view).detach() for view in views]
    predictions = [objective.predictor(embedding).detach().numpy() for embedding in embeddings]
    targets = [outputs(objective, view, "twin_backbone", "twin_head") for view in views]
    expected = reference((predictions[0], predictions[1]), (targets[0].numpy(), targets[1].numpy()))
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.embedding.detach(), F.normalize(embeddings[0], dim=1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, F.normalize(targets[1], dim=1), rtol=1e-8, atol=1e-12)
    first = F.cosine_similarity(torch.from_numpy(predictions[0]), targets[1])
    torch.testing.assert_close(output.positive.detach(), first, rtol=1e-8, atol=1e-12)


def test_identical_views_through_an_equal_twin_are_not_yet_predicted() -> None:
    """The predictor stands between: the loss is not trivially nought."""
    view = pictures()[0]
    output = output_of(small("byol").eval(), [view, view])
    assert (output.loss > 0.1).all()
    torch.testing.assert_close(output.loss, 4 - 4 * output.positive, rtol=1e-10, atol=1e-12)
