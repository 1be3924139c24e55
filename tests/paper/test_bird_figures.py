"""The bench's pictures: what they are made of, and that they can be drawn from a real run."""

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
from finesight.paper import bird_figures as pictures
from finesight.paper.bird_figures import attention_figure, k_figure, own_k
from finesight.paper.engine import Bench
from finesight.paper.profiles import PROFILES
from finesight.paper.systems import PROJECTIONS
from finesight.plots.figures import KCurve


def width(png: bytes) -> int:
    return Image.open(io.BytesIO(png)).width


def copied(done: Bench, folder: Path) -> Bench:
    shutil.copytree(done.runs.parent, folder, dirs_exist_ok=True)
    return tiny.bench(done.data, folder, done.profile)


@pytest.fixture
def views(done: Bench) -> torch.Tensor:
    encoder = Encoder.load(done.run("moco-v2", 0).root)
    return encoder.prepare([done.data / "images" / line.split()[1] for line in listed(done)[:3]])


def listed(done: Bench) -> list[str]:
    return (done.data / "images.txt").read_text().splitlines()


def test_the_curve_has_all_k_and_the_baselines(done: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[KCurve] = []
    monkeypatch.setattr(pictures, "k_curves", lambda panels: drawn.extend(panels) or b"")
    results = done.results.read()
    k_figure(done.profile, results)
    assert [panel.ylabel for panel in drawn] == ["rank-1 (%)", "mAP (%)"]
    rank1, mean_ap = drawn
    assert sorted(rank1.points) == sorted([*PROJECTIONS, 32])
    assert rank1.points[32] == [results["lcr"][0]["retrieval"]["rank1"]]
    assert mean_ap.points[8] == [results["lcr-k8"][0]["retrieval"]["mAP"]]
    assert list(mean_ap.baselines) == ["MoCo v2, average", "MoCo v2, energy mask in GeM"]
    assert mean_ap.baselines["MoCo v2, average"] == [results["moco-v2"][0]["retrieval"]["mAP"]]


@pytest.mark.parametrize("name", PROFILES)
def test_lcr_itself_has_the_k_of_the_paper(name: str) -> None:
    assert own_k(PROFILES[name]) == 32


def test_a_curve_of_few_results_is_drawn(done: Bench) -> None:
    results = done.results.read()
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


def test_the_attention_figure_loses_only_the_column_that_needs_a_checkpoint(done: Bench, tmp_path: Path) -> None:
    job = copied(done, tmp_path)
    whole = attention_figure(job)
    assert whole is not None
    assert whole == attention_figure(job), "nothing in it is drawn by lot"
    shutil.rmtree(job.run("moco-v2", 0).checkpoints)
    less = attention_figure(job)
    assert less is not None
    assert width(whole) / width(less) == pytest.approx(4 / 3, rel=0.05)
    shutil.rmtree(job.run("lcr", 0).encoder)
    assert attention_figure(job) is None


def test_no_run_no_picture(done: Bench, tmp_path: Path) -> None:
    assert attention_figure(replace(done, runs=tmp_path)) is None


def test_the_figure_needs_no_weight_file(done: Bench, tmp_path: Path) -> None:
    """Those of a run are in its checkpoint; the file may lie elsewhere by now."""
    assert attention_figure(replace(done, weights=str(tmp_path / "gone.pth"))) == attention_figure(done)


def test_gradcam_is_that_of_the_loss_at_the_last_step(done: Bench, views: torch.Tensor) -> None:
    """By differentiating through the map itself, from the numbers in the checkpoint."""
    run = done.run("moco-v2", 0)
    encoder = Encoder.load(run.root)
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
    tiny.run(job, ["moco-v2", "lcr"])
    assert attention_figure(job) is not None
