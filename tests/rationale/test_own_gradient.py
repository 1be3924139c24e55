"""GradCAM of each image's own loss: batch norms of the heads with the statistics of the batch as constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.nn.norm import held_statistics, hold_norms, join_norms
from finesight.nn.objective_output import ObjectiveOutput
from finesight.rationale.loss import RationaleOutput
from finesight.training.batches import step_generator
from finesight.training.module import TrainingModule
from small import CLASSES, small_module, take_step

IMAGES = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "byol": {},
    "simsiam": {},
    "moco-v2": {"objective.projector": "3-layer-bn"},
}


def built(method: str, gradient: str) -> TrainingModule:
    """In double precision; norms whose scale and shift do something."""
    switches = {"rationale.variant": "finesight", "rationale.gradient": gradient, "rationale.target_scale": "image"}
    module = small_module(method, **switches, **SETTINGS.get(method, {})).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.objective.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand(parameter.shape, dtype=torch.float64, generator=generator))
    return module


def fitted(module: TrainingModule) -> tuple[ObjectiveOutput, RationaleOutput]:
    count = module.objective.views or len(module.kinds)
    views = [torch.randn(IMAGES, 3, 32, 32, dtype=torch.float64, generator=step_generator(1, i)) for i in range(count)]
    output = module.objective(views, step_generator(0, 0), torch.arange(IMAGES) % CLASSES)
    assert module.rationale is not None
    return output, module.rationale(output, average_pooled=True)


def alone(layers: nn.Module, row: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Pass one row through the layers of a head, and the batch beside it, whose statistics are constants."""
    assert isinstance(layers, nn.Sequential)
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d):
            mean, var = batch.mean(0), batch.var(0, correction=0)
            weight, bias = (layer.weight.detach(), layer.bias.detach()) if layer.affine else (1.0, 0.0)
            row, batch = (((x - mean) / (var + layer.eps).sqrt()) * weight + bias for x in (row, batch))
        elif isinstance(layer, nn.Linear):
            row, batch = (F.linear(x, layer.weight.detach(), layer.bias) for x in (row, batch.detach()))
            batch = batch.detach()
        else:
            row, batch = F.relu(row), F.relu(batch)
    return row, batch


def own_map(module: TrainingModule, output: ObjectiveOutput, i: int) -> Tensor:
    """The magnitude of image i's own GradCAM, its loss computed again from its own pooled vector."""
    objective: Any = module.objective
    batch, row = output.pooled.detach(), output.pooled[i : i + 1].detach().requires_grad_()
    answer, answers = alone(objective.head, row, batch)
    target = output.target[i : i + 1]
    if module.config.method == "moco-v2":
        q = F.normalize(answer, dim=1)
        logits = torch.cat([(q * target).sum(1, keepdim=True), q @ objective.queue.vectors.T], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(1, dtype=torch.long))
    else:
        guess, _ = alone(objective.predictor, answer, answers)
        loss = -F.cosine_similarity(guess, target).sum() * (2.0 if module.config.method == "byol" else 0.5)
    (slope,) = torch.autograd.grad(loss, row)
    cells = output.phi.shape[2] * output.phi.shape[3]
    return torch.einsum("c,chw->hw", slope[0], output.phi[i].detach()).abs() / cells


@pytest.mark.parametrize("method", SETTINGS)
def test_it_is_that_of_each_images_own_loss(method: str) -> None:
    module = built(method, "own")
    output, found = fitted(module)
    expected = torch.stack([own_map(module, output, i) for i in range(IMAGES)])
    torch.testing.assert_close(found.target, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("method", SETTINGS)
def test_the_gradient_of_the_sum_is_another_one(method: str) -> None:
    summed, own = (fitted(built(method, gradient))[1].target for gradient in ("summed", "own"))
    assert (summed - own).norm() > 0.05 * own.norm()


@pytest.mark.parametrize("method", ["moco-v2", "dino", "supervised"])
def test_without_norms_in_the_heads_both_are_the_same(method: str) -> None:
    module = small_module(method, **{"rationale.variant": "finesight"}).double()
    held = small_module(method, **{"rationale.variant": "finesight", "rationale.gradient": "own"}).double()
    assert torch.equal(fitted(module)[1].target, fitted(held)[1].target)


@pytest.mark.parametrize("method", ["byol", "simsiam"])
def test_the_encoder_learns_as_without_it(method: str) -> None:
    """Only GradCAM is differentiated otherwise: losses, weights and running statistics stay."""
    switches = {"rationale.variant": "finesight"}
    plain, held = (small_module(method, **switches, **{"rationale.gradient": g}) for g in ("summed", "own"))
    for step in range(2):
        take_step(plain, step)
        take_step(held, step)
    before, after = plain.objective.state_dict(), held.objective.state_dict()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, affine=False), nn.BatchNorm2d(5)])
@pytest.mark.parametrize("joined", [False, True])
def test_a_norm_whose_statistics_are_held_is_a_fixed_map(norm: nn.Module, joined: bool) -> None:
    network = nn.Sequential(norm).double()
    if joined:
        join_norms(network)
    hold_norms(network)
    shape = (4, 5, 2, 3) if isinstance(norm, nn.BatchNorm2d) else (4, 5)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(shape, dtype=torch.float64, generator=generator)
    y = network(x)
    assert torch.equal(y, F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps))
    with held_statistics():
        (held,) = torch.autograd.grad((y * weights).sum(), x, retain_graph=True)
    over = [0, *range(2, x.ndim)]
    scale = (x.var(over, correction=0, keepdim=True) + norm.eps).rsqrt().detach()
    gain = 1.0 if norm.weight is None else norm.weight.detach().view(1, -1, *[1] * (x.ndim - 2))
    torch.testing.assert_close(held, weights * scale * gain)
    (whole,) = torch.autograd.grad((y * weights).sum(), x)
    assert whole.sum(over).abs().max() < 1e-9, "outside, a shift of the whole batch changes nothing"
    assert held.sum(over).abs().max() > 0.1
