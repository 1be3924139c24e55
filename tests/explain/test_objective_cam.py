"""GradCAM of every objective, from the numbers in the run's checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from finesight.explain.objective_cam import NoGradCAM, ObjectiveCam, loss_gradcam, restore_module
from finesight.features.encoder import Encoder
from finesight.methods.base import METHODS
from finesight.training.run_folder import RunFolder

RunOf = Callable[..., RunFolder]
# One method of every objective, and those that pool in training by the branch or keep boxes in the checkpoint.
ONE_EACH = {entry.objective: name for name, entry in reversed(list(METHODS.items())) if entry.objective is not None}
NAMES = sorted({*ONE_EACH.values(), "lcr", "moco-bilinear", "lcr-dual-pooling", "contrastive-crop"})


def views(count: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def opened(run: RunFolder) -> tuple[ObjectiveCam, Encoder]:
    encoder = Encoder.load(run.root)
    return ObjectiveCam(run, encoder), encoder


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_it_is_the_gradient_of_the_loss_through_the_whole_map(run_of: RunOf, method: str) -> None:
    """By differentiating the training as the checkpoint has it, backbone and all."""
    run = run_of(method)
    cam, encoder = opened(run)
    found = cam(views())
    assert found.shape == (3, 4, 4)
    assert not found.requires_grad
    assert (found >= 0).all()
    assert (found > 0).any(), "a map of zeros would say nothing"
    state = torch.load(next(run.checkpoints.glob("*.pt")), weights_only=True)["module"]
    module = restore_module(run, encoder)
    assert not module.training
    kept = module.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in state.items())
    objective = module.objective
    full = module.hook.complete_views(views(), objective)
    pair = [full, full.flip(3)]
    labels = None
    if objective.labeled:
        labels = objective.head(objective.backbone(views()).mean((2, 3))).argmax(1)
    output = objective(pair[: objective.views], torch.Generator().manual_seed(7), labels)
    (slope,) = torch.autograd.grad(output.loss.sum(), output.phi)
    torch.testing.assert_close(found, (slope * output.phi).sum(1).abs().detach(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["moco-v2", "byol", "vicreg", "dino"])
def test_the_same_every_time_and_without_touching_the_random_numbers(run_of: RunOf, method: str) -> None:
    run = run_of(method)
    encoder = Encoder.load(run.root)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    cam = ObjectiveCam(run, encoder)
    first = cam(views())
    assert torch.equal(torch.rand(3), wanted)
    assert torch.equal(cam(views()), first)


def test_relu_is_the_positive_half(run_of: RunOf) -> None:
    cam, _ = opened(run_of("moco-v2"))
    magnitude, half = cam(views()), cam(views(), "relu")
    assert torch.equal(half, torch.where(half > 0, magnitude, 0.0))
    assert 0 < (half > 0).sum() < half.numel()


@pytest.mark.parametrize("method", sorted(ONE_EACH.values()))
def test_the_images_are_the_batch_of_losses_that_have_one(run_of: RunOf, method: str) -> None:
    cam, _ = opened(run_of(method))
    together = cam(views(4))
    if cam.objective.couples_batch:
        assert not torch.allclose(cam(views(4)[:2]), together[:2])
        with pytest.raises(NoGradCAM, match="2 or more"):
            cam(views(1))
    else:
        torch.testing.assert_close(cam(views(4)[:1]), together[:1], rtol=1e-3, atol=1e-6)


def test_why_there_is_none(run_of: RunOf, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(run_of("moco-v2").root, tmp_path / "run")))
    encoder = Encoder.load(run.root)
    assert loss_gradcam(run, encoder, views()) is not None
    (file,) = run.checkpoints.glob("*.pt")
    state = torch.load(file, weights_only=True)
    other = {"module": {**state["module"], "objective.other": torch.zeros(1)}}
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: torch.save(other, file), "another version"),
        (lambda: file.write_bytes(b"damaged"), "can be read"),
        (file.unlink, "no checkpoint left"),
        (lambda: run.config_file.write_text("data: '-'\nmethod: frozen\n"), "was not trained"),
        (lambda: run.config_file.write_text("data: '-'\nsetting: of another version\n"), r"config\.yaml"),
    ]
    for change, words in changes:
        change()
        with pytest.raises(NoGradCAM, match=words):
            ObjectiveCam(run, encoder)
    with pytest.raises(NoGradCAM, match="without its run"):
        ObjectiveCam(RunFolder(run.encoder), encoder)
    assert loss_gradcam(run, encoder, views()) is None
