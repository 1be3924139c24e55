import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from finesight.training.health import collapse_warning, embedding_health


def health(embedding: Tensor) -> dict[str, float]:
    return {name: value.item() for name, value in embedding_health(embedding).items()}


def units(n: int, dim: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize(("n", "dim"), [(20, 6), (5, 30), (2, 2)])
def test_against_numpy(n: int, dim: int) -> None:
    z = units(n, dim)
    found = health(z)
    exact = z.double().numpy()
    spread = np.mean([math.sqrt(np.mean((column - column.mean()) ** 2)) for column in exact.T]) * math.sqrt(dim)
    values = np.sqrt(np.clip(np.linalg.eigvalsh(exact.T @ exact if dim <= n else exact @ exact.T), 0, None))
    share = values[values > 0] / values.sum()
    assert found["embedding_spread"] == pytest.approx(spread, rel=1e-5)
    assert found["effective_rank"] == pytest.approx(math.exp(-(share * np.log(share)).sum()), rel=1e-4)


def test_vectors_spread_over_the_sphere_are_healthy() -> None:
    found = health(units(512, 64))
    assert found["embedding_spread"] == pytest.approx(1, abs=0.03)
    assert found["effective_rank"] > 55
    assert collapse_warning(found) is None


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_one_vector_for_all_images_is_collapse(noise: float) -> None:
    found = health(F.normalize(units(1, 32) + noise * units(64, 32, 1), dim=1))
    assert found["embedding_spread"] < 0.01
    assert found["effective_rank"] == pytest.approx(1, abs=0.05)
    warning = collapse_warning(found)
    assert warning is not None
    assert "collapsed" in warning
    assert "--lr" in warning


def test_two_opposite_vectors_are_collapse_by_rank_alone() -> None:
    signs = torch.tensor([1.0, -1.0]).repeat(32)[:, None]
    found = health(signs * units(1, 32))
    assert found["embedding_spread"] > 0.5
    assert found["effective_rank"] == pytest.approx(1, abs=1e-3)
    assert collapse_warning(found) is not None


@pytest.mark.parametrize(
    ("spread", "rank", "fine"), [(0.5, 10, True), (0.1, 1.5, True), (0.09, 10, False), (0.5, 1.4, False)]
)
def test_floors(spread: float, rank: float, fine: bool) -> None:
    assert (collapse_warning({"embedding_spread": spread, "effective_rank": rank}) is None) == fine


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_embeddings_that_are_not_numbers_do_not_hide_the_real_error(bad: float) -> None:
    z = units(8, 4)
    z[3, 1] = bad
    assert all(math.isnan(value) for value in health(z).values())
