"""Every method in two processes, under DDP, with half the batch each: what one process computes on the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from method_steps import EACH, KEYS, METHODS, STATISTICS, STEPS, Step, every_method, same, steps_of
from ranks import RANKS, in_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Step]]]:
    """All methods in one pair of processes: starting them is what takes long."""
    return in_ranks(every_method, Path(tmp_path_factory.mktemp("ranks")))


@pytest.fixture(scope="module")
def alone() -> dict[str, list[Step]]:
    return {method: steps_of(method, slice(None)) for method in METHODS}


@pytest.fixture(params=[(method, step) for method in METHODS for step in range(STEPS)], ids=lambda p: f"{p[0]}-{p[1]}")
def case(
    request: pytest.FixtureRequest, ranks: list[dict[str, list[Step]]], alone: dict[str, list[Step]]
) -> tuple[list[Step], Step]:
    """A step of a method in the ranks, and in one process."""
    method, step = request.param
    return [rank[method][step] for rank in ranks], alone[method][step]


def test_losses_and_metrics(case: tuple[list[Step], Step]) -> None:
    found, expected = case
    for rank in found:
        assert rank["means"].keys() == expected["means"].keys()
        for name, value in expected["means"].items():
            same(rank["means"][name], value, name)
    for name, value in expected["rows"].items():
        same(torch.cat([rank["rows"][name] for rank in found]), value, name)


def test_gradients_that_ddp_averages(case: tuple[list[Step], Step]) -> None:
    found, expected = case
    for name, value in expected["gradients"].items():
        assert value is not None, f"{name} has no gradient: DDP would wait for it in vain"
        for rank in found:
            same(rank["gradients"][name], value, name)
    sizes = {name: float(value.abs().max()) for name, value in expected["gradients"].items()}
    assert sum(size > 1e-6 for size in sizes.values()) >= len(sizes) - 1, sizes


def test_gradcam_of_each_ranks_images(case: tuple[list[Step], Step]) -> None:
    """An image's part in the losses of other ranks' images counts too."""
    found, expected = case
    joined = torch.cat([rank["gradcam"] for rank in found])
    assert joined.shape == (RANKS * EACH, 4, 4)
    same(joined, expected["gradcam"], "GradCAM")


def test_the_state_after_the_step(case: tuple[list[Step], Step]) -> None:
    """Weights, twins, statistics, DINO's center."""
    found, expected = case
    for rank in found:
        assert rank["state"].keys() == expected["state"].keys()
        for name, value in expected["state"].items():
            if not name.startswith(KEYS) or name.rpartition(".")[2] not in STATISTICS:
                same(rank["state"][name], value, name)
