"""Training that spares what a pretrained backbone knows; images as large at test time as they should be; other K."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finesight.data.cache import open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.nn.objective_output import ObjectiveOutput
from finesight.rationale.branch import FittingBranch
from finesight.rationale.loss import Rationale, rationale_kl
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import FROZEN_POOLING, FROZEN_POOLINGS, frozen_encoder, load_studied_branches
from finesight.training.train import train
from finesight.training.train_images import prepare_data
from processes import rows
from small import SMALL

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {**SMALL, "validation.fraction": 0.0}
QUIET = RuntimeConfig(progress=False, log_every=1)


def finished(birds: Path, out: Path, **settings: Any) -> RunFolder:
    return train(build_config({**SETTINGS, **settings, "data": str(birds)}), out, QUIET)


@pytest.fixture(scope="module")
def plain(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(birds, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def studied(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """With branches of two other K beside its own."""
    return finished(birds, tmp_path_factory.mktemp("studied"), **{"rationale.study": (2, 5)})


def backbone_of(run: RunFolder) -> dict[str, torch.Tensor]:
    return Encoder.load(run.root).backbone.state_dict()


def moved(birds: Path, out: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """How far each weight of the backbone went."""
    run = finished(birds, out, **{"backbone.frozen_norm": True, **settings})
    start = frozen_encoder(run.config()).backbone.state_dict()
    return {name: (value - start[name]) for name, value in backbone_of(run).items() if value.is_floating_point()}


def test_the_backbone_takes_its_share_of_the_rate(birds: Path, tmp_path: Path) -> None:
    """After one step the distance is rate times gradient, and the gradient is the same."""
    one_step = {"limit_images": 8, "epochs": 1}
    whole = moved(birds, tmp_path / "whole", **one_step)
    quarter = moved(birds, tmp_path / "quarter", **one_step, **{"optim.backbone_lr_ratio": 0.25})
    assert any(delta.any() for delta in whole.values())
    for name, delta in whole.items():
        torch.testing.assert_close(quarter[name], delta / 4, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_encoder_is_the_trained_one_mixed_with_the_initial_one(
    birds: Path, tmp_path: Path, plain: RunFolder, share: float
) -> None:
    """Batch statistics too; what training itself computes does not change."""
    mixed = finished(birds, tmp_path / "mixed", initial_weight_ratio=share)
    start, end = frozen_encoder(plain.config()).backbone.state_dict(), backbone_of(plain)
    for name, value in backbone_of(mixed).items():
        if value.is_floating_point():
            torch.testing.assert_close(value, share * start[name] + (1 - share) * end[name])
    branches = [Encoder.load(run.root).branch for run in (plain, mixed)]
    assert all(torch.equal(a, b) for a, b in zip(*(branch.parameters() for branch in branches if branch), strict=True))
    assert [row["loss"] for row in rows(plain.root)] == [row["loss"] for row in rows(mixed.root)]


def test_an_encoder_is_used_at_the_test_resolution(birds: Path, tmp_path: Path) -> None:
    settings = {"test_resolution": 48, "validation.fraction": 0.25, "validation.every_n_epochs": 1}
    run = finished(birds, tmp_path / "run", **settings)
    encoder = Encoder.load(run.root)
    assert encoder.config.resolution == 48
    assert encoder.prepare(sorted(birds.glob("test/*/*.png"))[:1]).shape == (1, 3, 48, 48)
    assert all(0 <= float(row["val_rank1"]) <= 100 for row in rows(run.root) if row["val_rank1"])
    assert sum(bool(row["val_rank1"]) for row in rows(run.root)) == 2


def test_training_on_the_first_classes(birds: Path, unlabeled: Path) -> None:
    settings = {**SETTINGS, "limit_classes": 2}
    cache, images, _ = prepare_data(build_config({**settings, "data": str(birds)}), QUIET)
    assert cache.source.labels is not None
    assert set(cache.source.labels[images]) == {0, 1}
    assert len(images) == 24
    with pytest.raises(FineSightError, match="has no classes"):
        prepare_data(build_config({**settings, "data": str(unlabeled)}), QUIET)
    with pytest.raises(FineSightError, match="has 4 classes"):
        prepare_data(build_config({**settings, "data": str(birds), "limit_classes": 5}), QUIET)


# --- other K in the same run ------------------------------------------------------------------------------------------


def test_studied_branches_change_nothing_else(plain: RunFolder, studied: RunFolder) -> None:
    first, second = (Encoder.load(run.root).state_dict() for run in (plain, studied))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [row["kl"] for row in rows(plain.root)] == [row["kl"] for row in rows(studied.root)]
    branches = load_studied_branches(studied)
    assert {k: branch.filters.weight.shape[0] for k, branch in branches.items()} == {2: 2, 5: 5}
    assert load_studied_branches(plain) == {}


def test_a_studied_branch_learns_as_it_would_alone() -> None:
    """Its gradient is that of the same branch fitted on its own, and none of it reaches φ."""
    config = build_config({"data": "-", "rationale.study": (3,), "rationale.encoder_gradient": 0.0}).rationale
    assert config is not None
    torch.manual_seed(0)
    rationale = Rationale(6, config)
    lone = copy.deepcopy(rationale.study["3"])
    assert isinstance(lone, FittingBranch)
    phi = torch.rand(4, 6, 3, 3, requires_grad=True)
    pooled = phi.mean((2, 3))
    loss = (pooled @ torch.randn(6, 5)).logsumexp(1)
    fitted = rationale(ObjectiveOutput(loss, phi, pooled, pooled, pooled), average_pooled=True)
    fitted.loss.backward()
    rationale_kl(fitted.target, lone(phi.detach()), config).backward()
    own = rationale.study["3"].filters.weight.grad
    assert own is not None
    assert own.any()
    torch.testing.assert_close(own, lone.filters.weight.grad)
    assert phi.grad is None or not phi.grad.any()


def test_other_branches_pool_in_the_same_pass(birds: Path, studied: RunFolder) -> None:
    encoder = Encoder.load(studied.root)
    more = encoder.with_branches({"2": load_studied_branches(studied)[2], "fresh": encoder.fresh_branch(3)})
    source = open_source(birds).split("test")
    cache = open_cache(source, 37, progress=False)
    views = more.cached_views(cache, np.arange(4))
    names = ("rationale", "rationale:2", "rationale:2-gem", "rationale:fresh-gem")
    encoded = more.encode(views, names)
    swapped = Encoder(encoder.config, encoder.backbone, load_studied_branches(studied)[2])
    assert torch.equal(
        encoded.features["rationale:2-gem"], swapped.encode(views, ["rationale-gem"]).features["rationale-gem"]
    )
    assert torch.equal(encoded.features["rationale"], encoder.encode(views, ["rationale"]).features["rationale"])
    assert torch.equal(encoder.fresh_branch(3).filters.weight, more.extra_branches["fresh"].filters.weight)
    assert not torch.equal(encoder.fresh_branch(4).filters.weight, more.extra_branches["fresh"].filters.weight)
    with pytest.raises(FineSightError, match="no pooling 'rationale:9'"):
        more.encode(views, ["rationale:9"])


def test_the_frozen_network_is_the_one_that_training_begins_with(plain: RunFolder) -> None:
    """Under any pooling that needs no branch, without touching the caller's random numbers."""
    config = plain.config()
    module = TrainingModule(config, images=8, steps_per_epoch=1)
    before = torch.random.get_rng_state()
    encoders = {pooling: frozen_encoder(config, pooling) for pooling in FROZEN_POOLINGS}
    assert torch.equal(torch.random.get_rng_state(), before)
    assert FROZEN_POOLING in FROZEN_POOLINGS
    for pooling, encoder in encoders.items():
        assert (encoder.config.pooling, encoder.config.resolution) == (pooling, config.encoder_resolution)
        assert encoder.branch is None
        own, other = encoder.backbone.state_dict(), module.objective.backbone.state_dict()
        assert all(torch.equal(value, other[name]) for name, value in own.items())
