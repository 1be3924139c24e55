"""Figures of the birds: what they are made of, and that they can be drawn from a real run."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from torch.nn.functional import cross_entropy, normalize

from finesight.explain.inputs import spaced_over_classes
from finesight.explain.objective_cam import ObjectiveCam, loss_gradcam
from finesight.features.encoder import Encoder
from finesight.paper.benchmark import Benchmark
from finesight.paper.bird_figures import attention_figure, k_figure, k_panel, own_k
from finesight.paper.experiment import Run
from finesight.paper.profiles import PROFILES
from finesight.paper.rows import PROJECTIONS

pytestmark = pytest.mark.slow


def width(png: bytes) -> int:
    return Image.open(io.BytesIO(png)).width


def test_the_curve_has_all_k_and_the_baselines(done: Benchmark) -> None:
    results = done.store.read()
    rank1, mean_ap = (k_panel(done.profile, results, metric) for metric in ("rank-1", "mAP"))
    assert (rank1.ylabel, mean_ap.ylabel) == ("rank-1 (%)", "mAP (%)")
    assert sorted(rank1.points) == sorted([*PROJECTIONS, 32])
    assert rank1.points[32] == [results["lcr"][0]["retrieval"]["rank1"]]
    assert mean_ap.points[8] == [results["lcr-k8"][0]["retrieval"]["mAP"]]
    assert list(mean_ap.baselines) == ["MoCo v2, average", "MoCo v2, energy mask in GeM"]
    assert mean_ap.baselines["MoCo v2, average"] == [results["moco-v2"][0]["retrieval"]["mAP"]]


@pytest.mark.parametrize("name", PROFILES)
def test_lcr_itself_has_the_k_of_the_paper(name: str) -> None:
    assert own_k(PROFILES[name]) == 32


def test_a_curve_of_few_results_is_drawn(done: Benchmark) -> None:
    results = done.store.read()
    assert width(k_figure(done.profile, results)) > 1000
    assert width(k_figure(done.profile, {"lcr": results["lcr"]})) > 1000
    assert width(k_figure(done.profile, {})) < 1000  # a sentence


def test_the_same_birds_evenly_over_the_classes() -> None:
    labels = np.repeat(np.arange(200), 3)
    chosen = spaced_over_classes(labels, 8)
    assert labels[chosen].tolist() == [0, 28, 57, 85, 114, 142, 171, 199]
    assert chosen.tolist() == [3 * label for label in labels[chosen]]
    assert spaced_over_classes(np.array([4, 4, 9, 6]), 8).tolist() == [0, 3, 2]
    assert spaced_over_classes(np.array([5]), 8).tolist() == [0]


def test_the_attention_figure_loses_only_the_column_that_needs_a_checkpoint(done: Benchmark, tmp_path: Path) -> None:
    shutil.copytree(done.runs.parent, tmp_path, dirs_exist_ok=True)
    job = tiny.bench(done.data, tmp_path, done.profile)
    whole = attention_figure(job)
    assert whole is not None
    moved = replace(job, weights=str(tmp_path / "gone.pth"))  # the weights of a run are in its checkpoint
    assert whole == attention_figure(moved), "nothing in it is drawn by lot"
    shutil.rmtree(job.folder(Run("moco-v2", 0)).checkpoints)
    less = attention_figure(job)
    assert less is not None
    assert width(whole) / width(less) == pytest.approx(4 / 3, rel=0.05)
    shutil.rmtree(job.folder(Run("lcr", 0)).encoder)
    assert attention_figure(job) is None


def test_gradcam_is_that_of_the_loss_at_the_last_step(done: Benchmark) -> None:
    """By differentiating through the map itself, from the numbers in the checkpoint."""
    run = done.folder(Run("moco-v2", 0))
    encoder = Encoder.load(run.root)
    views = encoder.prepare(sorted(done.data.glob("images/*/*.jpg"))[:3])
    found = loss_gradcam(run, encoder, views)
    assert found is not None
    state = torch.load(sorted(run.checkpoints.glob("*.pt"))[-1], weights_only=True)["module"]
    objective = ObjectiveCam(run, encoder).objective
    assert torch.equal(objective.queue.vectors, state["objective.queue.vectors"])
    assert not objective.training
    phi = objective.backbone(views).detach().requires_grad_()
    q = normalize(objective.head(phi.mean((2, 3))), dim=1)
    key = normalize(objective.key_head(objective.key_backbone(torch.flip(views, dims=(-1,))).mean((2, 3))), dim=1)
    logits = torch.cat([(q * key.detach()).sum(1)[:, None], q @ objective.queue.vectors.T], 1)
    loss = cross_entropy(logits / 0.2, torch.zeros(len(q), dtype=torch.long), reduction="sum")
    (g,) = torch.autograd.grad(loss, phi)
    torch.testing.assert_close(found, (g * phi).sum(1).abs().detach())


def test_a_shared_training_gives_both_columns(cub: Path, tmp_path: Path) -> None:
    job = tiny.bench(cub, tmp_path, tiny.profile(rationale=tiny.APART))
    job.encoder(Run("lcr", 0))
    assert attention_figure(job) is not None
