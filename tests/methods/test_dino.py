import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import assert_slopes, bare, images, normal, output_of, pictures, small
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.dino import dino_loss
from reference.dino import center as center_reference
from reference.dino import dino as reference

PROTOTYPES = 7


class Said(nn.Module):
    """A head whose logits are a linear map of what it sees."""

    def __init__(self, dim: int, prototypes: int, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * normal(prototypes, dim, seed=seed))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(x, dim=1), x @ self.weight.T


def plain(dim: int = 4, **settings: float) -> tuple[Any, np.ndarray, np.ndarray]:
    """DINO without networks; student and teacher are two linear maps of the views."""
    objective = bare("dino", dim, **settings)
    objective.head, objective.teacher_head = Said(dim, PROTOTYPES, 20), Said(dim, PROTOTYPES, 21).requires_grad_(False)
    objective.center = 0.05 * normal(PROTOTYPES, seed=22)
    return objective, objective.head.weight.detach().numpy(), objective.teacher_head.weight.numpy()


def global_and_local(n: int = 3, local: int = 2, side: int = 20) -> list[Tensor]:
    return [*pictures(n), *pictures(n, side=side, views=local, seed=7)]


def logits(objective: nn.Module, view: Tensor, backbone: str, head: str) -> np.ndarray:
    """From the layers of a head: three with GELU, a unit vector, and unit prototypes."""
    x = getattr(objective, backbone)(view).mean((2, 3))
    network = getattr(objective, head)
    for layer in network.layers:
        x = layer(x)
    x, prototypes = x.detach().numpy(), network.prototypes.detach().numpy()
    rows = [[u @ p / math.sqrt(u @ u) / math.sqrt(p @ p) for p in prototypes] for u in x]
    return np.array(rows)


# --- the loss -----------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 3),
    prototypes=st.integers(2, 5),
    views=st.integers(2, 4),
    teachers=st.integers(1, 2),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_loss_against_loops(n: int, prototypes: int, views: int, teachers: int, scale: float, seed: int) -> None:
    student = scale * normal(views, n, prototypes, seed=seed)
    teacher = scale * normal(teachers, n, prototypes, seed=seed + 1)
    center = scale * normal(prototypes, seed=seed + 2)
    loss = dino_loss(list((student / 0.1).log_softmax(2)), list(((teacher - center) / 0.04).softmax(2)))
    expected = reference(list(student.numpy()), list(teacher.numpy()), center.numpy())
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-9, atol=1e-11)


def test_of_two_views_each_is_taught_by_the_other() -> None:
    """No view by itself: with one-hot assignments, agreement across the views is all that counts."""
    certain = torch.eye(3, dtype=torch.float64)
    sure, unsure = certain.clamp(min=1e-30).log(), torch.full((3, 3), 1 / 3, dtype=torch.float64).log()
    np.testing.assert_allclose(dino_loss([sure, sure], [certain, certain]).numpy(), np.zeros(3), atol=1e-20)
    turned = certain.roll(1, 1)
    np.testing.assert_allclose(dino_loss([sure, turned.clamp(min=1e-30).log()], [turned, certain]).numpy(), np.zeros(3))
    np.testing.assert_allclose(dino_loss([unsure, sure], [certain, certain]).numpy(), np.full(3, math.log(3) / 2))


def test_gradients_against_finite_differences_with_a_still_teacher() -> None:
    """In every view, local ones too; the teacher sees the same images, but sends nothing back."""
    objective, student, teacher = plain()
    views = [normal(2, 4, seed=seed) for seed in range(4)]
    still = [view.numpy() @ teacher.T for view in views[:2]]
    center = objective.center.numpy()
    assert_slopes(objective, lambda *seen: reference([z @ student.T for z in seen], still, center).mean(), *views)


@pytest.mark.parametrize(("n", "local", "side"), [(2, 0, 20), (3, 1, 20), (2, 3, 20), (3, 2, 36)])
def test_per_image_losses_against_loops_end_to_end(n: int, local: int, side: int) -> None:
    """Only the student sees local crops, even if they are as large as the others; prototypes have unit length."""
    objective, views = small("dino").eval(), global_and_local(n, local, side)
    objective.center = 0.1 * normal(PROTOTYPES)
    output = output_of(objective, views)
    student = [logits(objective, view, "backbone", "head") for view in views]
    teacher = [logits(objective, view, "teacher_backbone", "teacher_head") for view in views[:2]]
    expected = reference(student, teacher, objective.center.numpy())
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-8)
    assert len(output.phi) == n


def test_temperatures_are_the_configured_ones() -> None:
    objective, student, teacher = plain(student_temperature=0.3, teacher_temperature=0.7)
    views = [normal(3, 4, seed=seed) for seed in range(3)]
    loss = output_of(objective, [images(view) for view in views]).loss.detach().numpy()
    said = [view.numpy() @ student.T for view in views]
    taught = [view.numpy() @ teacher.T for view in views[:2]]
    np.testing.assert_allclose(loss, reference(said, taught, objective.center.numpy(), 0.3, 0.7), rtol=1e-9)
    assert (small("dino").config.student_temperature, small("dino").config.teacher_temperature) == (0.1, 0.04)


def test_embedding_and_target_are_the_units_before_the_prototypes() -> None:
    objective, views = small("dino").eval(), global_and_local()
    output = output_of(objective, views)
    unit, _ = objective.head(objective.backbone(views[0]).mean((2, 3)))
    target, _ = objective.teacher_head(objective.teacher_backbone(views[1]).mean((2, 3)))
    torch.testing.assert_close(output.embedding, unit, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(output.target, target, rtol=1e-8, atol=1e-12)


# --- center -------------------------------------------------------------------------------------------------------


def test_center_follows_the_mean_of_what_the_teacher_says_of_both_global_views() -> None:
    objective, _, teacher = plain()
    start, history = objective.center.clone(), []
    for step in range(3):
        views = [normal(3, 4, seed=10 * step + i) for i in range(4)]
        before = objective.center.clone()
        output = output_of(objective, [images(view) for view in views])
        assert torch.equal(objective.center, before), "the loss is that of the center of the steps before"
        objective.after_step(output)
        history.append([view.numpy() @ teacher.T for view in views[:2]])
    np.testing.assert_allclose(objective.center.numpy(), center_reference(history, start.numpy(), 0.9), rtol=1e-10)


def test_center_of_a_constant_teacher_is_what_it_says_and_leaves_no_favorite() -> None:
    """What all images have in common is taken out: the target becomes uniform."""
    objective, _, teacher = plain(center_momentum=0.5)
    same = normal(1, 4).repeat(3, 1)
    entropies = []
    for _ in range(45):
        output = output_of(objective, [images(same)] * 2)
        objective.after_step(output)
        entropies.append(output.metrics["teacher_entropy"].item())
    np.testing.assert_allclose(objective.center.numpy(), teacher @ same[0].numpy(), rtol=1e-10, atol=1e-12)
    assert entropies[0] < 0.9 * math.log(PROTOTYPES)
    assert entropies[-1] == pytest.approx(math.log(PROTOTYPES), rel=1e-10)


# --- the networks -------------------------------------------------------------------------------------------------


def test_a_prototypes_slope_does_not_change_its_length() -> None:
    objective = small("dino")
    output_of(objective, pictures()).loss.mean().backward()
    prototypes = objective.head.prototypes
    along = (prototypes.grad * prototypes).sum(1).detach().numpy()
    np.testing.assert_allclose(along, np.zeros(PROTOTYPES), atol=1e-12)
    assert (prototypes.grad.norm(dim=1) > 1e-8).all()


def test_only_global_views_reach_the_teacher() -> None:
    objective = small("dino").eval()
    seen: dict[str, list[tuple[int, ...]]] = {"teacher_backbone": [], "backbone": []}
    for name, shapes in seen.items():
        getattr(objective, name).register_forward_hook(lambda _, args, __, to=shapes: to.append(tuple(args[0].shape)))
    views = global_and_local(3, 2)
    output = output_of(objective, views)
    assert seen["teacher_backbone"] == [(6, 3, 36, 36)]
    assert seen["backbone"] == [(6, 3, 36, 36), (6, 3, 20, 20)]
    others = output_of(objective, [*views[:2], *pictures(3, side=20, seed=30)])
    assert torch.equal(others.target, output.target)
    assert torch.equal(others.metrics["teacher_entropy"], output.metrics["teacher_entropy"])
    assert not torch.allclose(others.loss, output.loss)


def test_prototypes_wait() -> None:
    objective = small("dino", freeze_epochs=1.5)
    layers, prototypes = objective.head_groups()
    assert list(prototypes.params) == [objective.head.prototypes]
    assert prototypes.freeze_epochs == 1.5
    assert list(layers.params) == list(objective.head.layers.parameters())
    assert layers.freeze_epochs == 0
    assert small("dino").head_groups()[1].freeze_epochs == 1.0
