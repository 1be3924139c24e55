"""Several processes compute what one does: through the command line, and piece by piece over gloo."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from finesight.methods.base import DatasetInfo
from finesight.methods.moco import MoCo, MoCoConfig
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.distributed import gather, gather_with_gradient, mean_over_ranks, shuffled_forward, sum_over_ranks
from finesight.training.batches import step_generator
from processes import TINY, TooLate, children_of, in_time, rows, trained
from ranks import RANKS, assert_same_training, in_ranks, stopped_pair

pytestmark = pytest.mark.slow

EACH, WIDTH = 6, 5


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finding the second process needs /proc")
def test_two_devices_train_as_one(birds: Path, tmp_path: Path) -> None:
    """Batch norm is what must differ: each process normalizes by its own half of the batch. So all norms keep their
    statistics here (``backbone.frozen_norm``; the head and the branch have none). The rest must agree to rounding.

    Then a signal reaches the second process only (a terminal's Ctrl-C reaches both, in any order): they must agree to
    stop after the same step. The run goes on with one device.
    """
    options = ("--data", str(birds), "--epochs", "4", "--set", "backbone.frozen_norm=true", *TINY)
    one = tmp_path / "one"
    trained(one, *options)

    def interrupt(place: Path) -> None:
        two = place / "run"
        code, err = stopped_pair(two, 6, lambda pair: os.kill(child_of(pair), signal.SIGINT), *options)
        shared = len(rows(two))
        if shared == 20:
            raise TooLate
        assert code == 130, err
        assert "Traceback" not in err
        assert err.count("The same command continues.") == 1, err
        assert shared >= 6
        trained(two, *options)
        assert_same_training(one, two)

    in_time(interrupt, tmp_path)


def child_of(process: int) -> int:
    """The process Lightning started for the second device."""
    children = children_of(process)
    if not children:
        raise TooLate
    (child,) = children
    return child


# --- piece by piece ---------------------------------------------------------------------------------------------------


def images() -> torch.Tensor:
    """The joined batch; row i also says that it is i."""
    values = torch.randn(RANKS * EACH, WIDTH, generator=torch.Generator().manual_seed(1))
    values[:, 0] = torch.arange(RANKS * EACH)
    return values


def share(rank: int) -> slice:
    return slice(rank * EACH, (rank + 1) * EACH)


def shuffle_task(rank: int) -> dict[str, torch.Tensor]:
    """Keys through an ordinary batch norm, and which images this rank was given to make keys of."""
    norm, given = nn.BatchNorm1d(WIDTH, affine=False), []

    def network(x: torch.Tensor) -> torch.Tensor:
        given.append(x[:, 0].long())
        return norm(x)

    steps = [shuffled_forward(network, images()[share(rank)], step_generator(0, step)) for step in range(3)]
    return {"keys": torch.stack(steps), "given": torch.stack(given)}


def test_shuffled_keys_come_back_in_order(tmp_path: Path) -> None:
    results = in_ranks(shuffle_task, tmp_path)
    joined = images().double().numpy()
    for step in range(3):
        groups = [result["given"][step].tolist() for result in results]
        assert sorted(groups[0] + groups[1]) == list(range(RANKS * EACH)), "one permutation, common to the ranks"
        assert set(groups[0]) != set(range(EACH)), "a rank made the keys of its own images"
        for rank, result in enumerate(results):
            for place, image in enumerate(range(*share(rank).indices(RANKS * EACH))):
                mates = joined[next(group for group in groups if image in group)]
                expected = (joined[image] - mates.mean(0)) / np.sqrt(mates.var(0) + 1e-5)
                np.testing.assert_allclose(result["keys"][step, place], expected, atol=1e-5)
    assert len({tuple(group.tolist()) for group in results[0]["given"]}) == 3, "another permutation every step"


def moco_task(rank: int) -> dict[str, torch.Tensor]:
    """Three steps with an odd queue and ordinary norms: the queue, and the keys each step made here."""
    torch.manual_seed(0)
    moco = MoCo(
        Backbone(BackboneConfig(name="test_resnet", weights="random")),
        MoCoConfig(dim=8, hidden=8, queue=17),
        DatasetInfo(100, 8),
    )
    keys = []
    for step in range(3):
        generator = step_generator(0, step)
        views = torch.randn(2, RANKS * EACH, 3, 32, 32, generator=generator)[:, share(rank)]
        moco.before_step()
        outcome = moco([views[0], views[1]], generator)
        moco.after_step(outcome)
        keys.append(outcome.target)
    return {"queue": moco.queue.vectors, "pointer": moco.queue.pointer, "keys": torch.stack(keys)}


def test_queues_stay_the_same_on_every_rank(tmp_path: Path) -> None:
    first, second = in_ranks(moco_task, tmp_path)
    assert torch.equal(first["queue"], second["queue"])
    assert first["pointer"] == second["pointer"] == 3 * RANKS * EACH % 17
    pushed = torch.cat([first["keys"], second["keys"]], dim=1).flatten(0, 1)  # rank order within each step
    for age, key in enumerate(pushed.flip(0)[:17]):
        assert torch.equal(first["queue"][(int(first["pointer"]) - 1 - age) % 17], key)


def leaf(rank: int | None = None) -> torch.Tensor:
    """The rows of one rank, or of all, to be differentiated by."""
    mine = images().double()[slice(None) if rank is None else share(rank)] / 10
    return mine.clone().requires_grad_()


def against_all(mine: torch.Tensor, joined: torch.Tensor) -> torch.Tensor:
    """A loss per row of ``mine`` in which every row of ``joined`` has its own part."""
    weight = torch.linspace(-1, 2, len(joined), dtype=torch.float64)
    return ((mine @ joined.T).sin() * weight).sum(1)


def slope(mine: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(loss.sum(), mine, retain_graph=True)
    return gradient


def joining_task(rank: int) -> dict[str, torch.Tensor]:
    mine = images()[share(rank)]
    means = mean_over_ranks({"mean": mine.mean(), "nan": torch.tensor([1.0, torch.nan][rank])})
    x = leaf(rank)
    joined, total = gather_with_gradient(x), sum_over_ranks(x)
    return {
        "rows": gather(mine),
        **means,
        "joined": joined.detach(),
        "joined_slope": slope(x, against_all(x, joined)),
        "expanded_slope": slope(x, joined),
        "total": total.detach(),
        "total_slope": slope(x, (rank + 1) * (x * total).sin()),
        "part_slope": slope(x, total[:2]),
    }


@pytest.fixture(scope="module")
def joining(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    return in_ranks(joining_task, Path(tmp_path_factory.mktemp("joining")))


def test_joining(joining: list[dict[str, torch.Tensor]]) -> None:
    for result in joining:
        assert torch.equal(result["rows"], images())
        torch.testing.assert_close(result["mean"], images().mean())
        assert result["nan"].isnan(), "what is wrong on one rank is known on all"


def test_joined_rows_get_the_gradient_of_every_ranks_loss(joining: list[dict[str, torch.Tensor]]) -> None:
    x = leaf()
    assert gather_with_gradient(x) is x, "one process has all rows already"
    expected = slope(x, against_all(x, x))
    torch.testing.assert_close(torch.cat([result["joined_slope"] for result in joining]), expected, rtol=1e-12, atol=0)
    for result in joining:
        assert torch.equal(result["joined"], x)
        assert torch.equal(result["expanded_slope"], torch.full_like(x[:EACH], RANKS)), "each rank asked for it once"


def test_a_sum_over_ranks_gets_the_gradient_of_every_ranks_loss(joining: list[dict[str, torch.Tensor]]) -> None:
    x = leaf()
    assert sum_over_ranks(x) is x
    total = x[:EACH] + x[EACH:]
    rank = torch.arange(1, RANKS + 1, dtype=torch.float64).repeat_interleave(EACH)[:, None]
    expected = slope(x, rank * (x * total.repeat(RANKS, 1)).sin())
    torch.testing.assert_close(torch.cat([result["total_slope"] for result in joining]), expected, rtol=1e-12, atol=0)
    for result in joining:
        torch.testing.assert_close(result["total"], total, rtol=1e-15, atol=0)
        asked = torch.tensor([RANKS] * 2 + [0] * (EACH - 2), dtype=torch.float64)[:, None]
        assert torch.equal(result["part_slope"], asked.expand(-1, WIDTH))
