"""Batch norms that see the joined batch: in one process they are what they were, in two they are one over all rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.momentum import momentum_copy
from finesight.nn.norm import JointNorm, join_norms
from ranks import RANKS, in_ranks

EACH, WIDTH, STEPS = 3, 4, 3
WHOLE = slice(None)
Results = dict[str, Any]

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # and the shape of a row beyond the channels
    "1d": (lambda: nn.BatchNorm1d(WIDTH), ()),
    "1d-plain": (lambda: nn.BatchNorm1d(WIDTH, affine=False), ()),
    "1d-sequence": (lambda: nn.BatchNorm1d(WIDTH, momentum=0.3, eps=1e-2), (5,)),
    "1d-untracked": (lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False), ()),
    "2d": (lambda: nn.BatchNorm2d(WIDTH), (3, 2)),
    "2d-plain": (lambda: nn.BatchNorm2d(WIDTH, affine=False), (3, 2)),
    "timm": (lambda: BatchNormAct2d(WIDTH), (3, 2)),
    "timm-silu": (lambda: BatchNormAct2d(WIDTH, act_layer=nn.SiLU), (3, 2)),
    "timm-plain": (lambda: BatchNormAct2d(WIDTH, affine=False), (3, 2)),
    "timm-without": (lambda: BatchNormAct2d(WIDTH, apply_act=False), (3, 2)),
}


def made(name: str) -> nn.Module:
    """With weights and statistics of no special value."""
    torch.manual_seed(0)
    norm = NORMS[name][0]().double()
    with torch.no_grad():
        for tensor in [*norm.parameters(), *norm.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return norm


def joined(norm: nn.Module) -> nn.Module:
    join_norms(norm)
    return norm


def rows(name: str, step: int) -> tuple[Tensor, Tensor]:
    """The joined batch, and what the loss weighs it by. The second rank's half is of another mean and spread."""
    generator = torch.Generator().manual_seed(step)
    shape = (RANKS * EACH, WIDTH, *NORMS[name][1])
    x, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    x[EACH:] = 2 * x[EACH:] + 3
    return x, weight


def share(rank: int) -> slice:
    return slice(rank * EACH, (rank + 1) * EACH)


def passes(norm: nn.Module, name: str, part: slice) -> Results:
    """A few steps of training on these rows, then one of evaluation."""
    outputs, slopes, weight_slopes = [], [], []
    for step in range(STEPS):
        x, weight = (tensor[part] for tensor in rows(name, step))
        x = x.clone().requires_grad_()
        y = norm(x)
        norm.zero_grad()
        (y * weight).sin().sum().backward()
        assert x.grad is not None
        outputs.append(y.detach())
        slopes.append(x.grad)
        weight_slopes.append([p.grad for p in norm.parameters()])
    statistics = {key: value.clone() for key, value in norm.named_buffers()}
    norm.eval()
    after = norm(rows(name, STEPS)[0][part])
    return {
        "outputs": torch.stack(outputs),
        "slopes": torch.stack(slopes),
        "weight_slopes": weight_slopes,
        "statistics": statistics,
        "evaluated": after.detach(),
    }


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
def test_in_one_process_nothing_changes_in_any_bit(name: str) -> None:
    found, expected = passes(joined(made(name)), name, WHOLE), passes(made(name), name, WHOLE)
    for part in ("outputs", "slopes", "evaluated"):
        assert torch.equal(found[part], expected[part]), part
    for ours, theirs in zip(found["weight_slopes"], expected["weight_slopes"], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert found["statistics"].keys() == expected["statistics"].keys()
    assert all(torch.equal(found["statistics"][key], value) for key, value in expected["statistics"].items())


def network() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(3, WIDTH, 3), BatchNormAct2d(WIDTH))
    return nn.Sequential(inner, nn.BatchNorm2d(WIDTH), nn.Flatten(), nn.LazyLinear(5), nn.BatchNorm1d(5, affine=False))


def test_every_norm_is_joined_and_nothing_else_and_twice_is_once() -> None:
    net = network()
    kinds = [type(module) for module in net.modules()]
    join_norms(net)
    once = [type(module) for module in net.modules()]
    for before, after in zip(kinds, once, strict=True):
        assert issubclass(after, before)
        assert issubclass(after, JointNorm) == issubclass(before, nn.BatchNorm1d | nn.BatchNorm2d)
    assert sum(issubclass(kind, JointNorm) for kind in once) == 3
    join_norms(net)
    assert [type(module) for module in net.modules()] == once


def test_names_and_weights_stay() -> None:
    """So checkpoints and encoders are the same files with and without."""
    plain, other = network(), network()
    x = torch.randn(4, 3, 6, 6)
    plain(x), other(x)
    before = [*other.parameters(), *other.buffers()]
    join_norms(other)
    assert list(plain.state_dict()) == list(other.state_dict())
    assert all(a is b for a, b in zip(before, [*other.parameters(), *other.buffers()], strict=True))
    plain.load_state_dict(other.state_dict())
    other.load_state_dict(plain.state_dict())
    assert torch.equal(plain(x), other(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, momentum_copy], ids=["deepcopy", "twin"])
def test_a_copy_is_joined_too_and_shares_nothing(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    original = joined(made("2d"))
    twin = duplicate(original)
    assert type(twin) is type(original)
    before = {key: value.clone() for key, value in original.state_dict().items()}
    twin(torch.randn(4, WIDTH, 2, 2, dtype=torch.float64))
    assert all(torch.equal(original.state_dict()[key], value) for key, value in before.items())
    assert not torch.equal(twin.state_dict()["running_mean"], before["running_mean"])


def test_a_frozen_norm_stays_frozen() -> None:
    """``Backbone.train`` finds the norms it must hold by their class."""
    backbone = Backbone(BackboneConfig(name="test_resnet", weights="random", frozen_norm=True))
    join_norms(backbone)
    backbone.train()
    norms = [module for module in backbone.modules() if isinstance(module, JointNorm)]
    assert norms
    assert not any(module.training for module in norms)


# --- two processes ----------------------------------------------------------------------------------------------------


def norm_task(rank: int) -> Results:
    """Copies of joined norms (a twin is one), norms that were not joined, and half precision beside full."""
    found: Results = {name: passes(copy.deepcopy(joined(made(name))), name, share(rank)) for name in NORMS}
    found["apart"] = passes(made("2d"), "2d", share(rank))
    x = rows("2d", 0)[0][share(rank)]
    found["half"] = joined(made("2d").float())(x.bfloat16()).detach()
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return in_ranks(norm_task, Path(tmp_path_factory.mktemp("ranks")))


@pytest.mark.parametrize("name", NORMS)
def test_two_processes_normalize_as_one(ranks: list[Results], name: str) -> None:
    found, expected = [rank[name] for rank in ranks], passes(made(name), name, WHOLE)
    for part in ("outputs", "slopes"):
        same(torch.cat([rank[part] for rank in found], dim=1), expected[part])
    if expected["statistics"]:  # without any, a norm goes by its batch in evaluation too, and each rank has its own
        same(torch.cat([rank["evaluated"] for rank in found]), expected["evaluated"])
    for step in range(STEPS):
        parts = zip(*(rank["weight_slopes"][step] for rank in found), strict=True)
        for ours, theirs in zip(parts, expected["weight_slopes"][step], strict=True):
            same(sum(ours, torch.zeros(())), theirs)
    for rank in found:
        assert rank["statistics"].keys() == expected["statistics"].keys()
        for key, value in expected["statistics"].items():
            same(rank["statistics"][key], value)


def test_norms_that_are_not_joined_differ(ranks: list[Results]) -> None:
    """The test above can fail."""
    apart = torch.cat([rank["apart"]["outputs"] for rank in ranks], dim=1)
    assert not torch.allclose(apart, passes(made("2d"), "2d", WHOLE)["outputs"], atol=0.1)


def test_half_precision_is_normalized_in_full_and_comes_back_half(ranks: list[Results]) -> None:
    half = torch.cat([rank["half"] for rank in ranks])
    assert half.dtype == torch.bfloat16
    x = rows("2d", 0)[0].bfloat16().float()
    torch.testing.assert_close(half.float(), made("2d").float()(x).detach(), rtol=2**-8, atol=1e-5)
