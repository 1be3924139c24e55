"""What holds for every objective: the output it hands on, who learns, and that the rationale can be put beside it."""

import math

import numpy as np
import pytest
import torch
from objectives import CHANNELS, labels, output_of, pictures, seeded, small
from torch.nn import functional as F

from finesight.methods.base import OBJECTIVES
from finesight.nn.momentum import rising_momentum
from finesight.rationale.config import VARIANTS
from finesight.rationale.gradcam import map_gradcam, pooled_gradcam
from finesight.rationale.loss import Rationale
from reference.gradcam import average
from reference.momentum import averaged

NAMES = sorted(OBJECTIVES)
every_objective = pytest.mark.parametrize("name", NAMES)


@every_objective
def test_output_has_the_promised_shapes(name: str) -> None:
    objective = small(name)
    output = output_of(objective, pictures(5))
    assert output.loss.shape == (5,)
    assert torch.isfinite(output.loss).all()
    assert output.phi.shape == (5, CHANNELS, 2, 2)
    assert output.embedding.ndim == output.target.ndim == 2
    assert output.embedding.shape == output.target.shape
    for unit in (output.embedding, output.target):
        np.testing.assert_allclose(unit.detach().norm(dim=1).numpy(), np.ones(5), rtol=1e-12)
    assert output.embedding.requires_grad
    assert not output.target.requires_grad
    assert output.positive is None or output.positive.shape == (5,)
    assert list(output.metrics) == list(objective.metrics)
    assert all(objective.metrics.values()), "each in words"
    for metric in output.metrics.values():
        assert metric.shape == ()
        assert not metric.requires_grad


@every_objective
def test_phi_is_the_online_map_of_the_first_view_and_pooled_its_average(name: str) -> None:
    objective, views = small(name).eval(), pictures()
    output = output_of(objective, views)
    torch.testing.assert_close(output.phi, objective.backbone(views[0]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(output.pooled.detach().numpy(), average(output.phi.detach().numpy()), rtol=1e-9)


@every_objective
def test_twins_get_no_gradient_and_every_other_weight_does(name: str) -> None:
    objective = small(name).train()
    output_of(objective, pictures()).loss.mean().backward()
    copies = {parameter for average, _ in objective.momentum_copies() for parameter in average.parameters()}
    for weight, parameter in objective.named_parameters():
        if parameter in copies:
            assert not parameter.requires_grad, weight
            assert parameter.grad is None, weight
        else:
            assert parameter.requires_grad, weight
            assert parameter.grad is not None, weight
            assert torch.isfinite(parameter.grad).all(), weight
            assert parameter.grad.any(), weight


@every_objective
def test_losses_differ_between_images_and_follow_them_when_the_batch_is_permuted(name: str) -> None:
    objective, views = small(name).eval(), pictures()
    order = torch.tensor([3, 0, 4, 2, 1])
    straight = objective(views, seeded(), labels())
    permuted = objective([view[order] for view in views], seeded(), labels()[order])
    for field in ("loss", "pooled", "embedding", "target"):
        here, there = getattr(straight, field), getattr(permuted, field)
        torch.testing.assert_close(there, here[order], rtol=1e-8, atol=1e-11)
    assert straight.loss.std() > 1e-4
    assert len(set(straight.loss.tolist())) == 5


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"cvsa", "lewel", "moco"}))  # keys are normalized in groups
def test_batch_norm_does_not_mind_a_permuted_batch(name: str) -> None:
    views, order = pictures(), torch.tensor([3, 0, 4, 2, 1])
    straight = small(name).train()(views, seeded(), labels())
    permuted = small(name).train()([view[order] for view in views], seeded(), labels()[order])
    torch.testing.assert_close(permuted.loss, straight.loss[order], rtol=1e-7, atol=1e-10)


@every_objective
def test_an_image_has_a_part_in_the_losses_of_others_only_where_they_hang_together(name: str) -> None:
    objective = small(name).eval()
    output = output_of(objective, pictures())
    rows = [torch.autograd.grad(loss, output.pooled, retain_graph=True)[0].norm(dim=1) for loss in output.loss]
    influence = torch.stack(rows)  # of the image in a column on the loss in a row
    assert (influence.diagonal() > 0).all()
    others = influence[~torch.eye(5, dtype=torch.bool)]
    assert (others > 0).all() if objective.couples_batch else not others.any()


@every_objective
def test_only_a_labeled_objective_looks_at_labels(name: str) -> None:
    objective, views = small(name).eval(), pictures()
    given, others = (objective(views, seeded(), these) for these in (labels(), labels().flip(0)))
    assert torch.equal(given.loss, others.loss) != objective.labeled
    if not objective.labeled:
        assert torch.equal(given.loss, objective(views, seeded()).loss)


@every_objective
def test_the_second_view_counts_where_it_is_asked_for(name: str) -> None:
    objective, views, others = small(name).eval(), pictures(), pictures(seed=5)
    loss = output_of(objective, views).loss
    changed = output_of(objective, [views[0], others[1]]).loss
    assert torch.equal(loss, changed) == (objective.views == 1)


@every_objective
def test_state_is_all_there_is(name: str) -> None:
    """A checkpoint holds everything the loss depends on."""
    views = pictures()
    first, second = small(name).train(), small(name, seed=1)
    first.before_step(0.5)
    first.after_step(output_of(first, views))
    second.load_state_dict(first.state_dict())
    first.eval()
    second.eval()
    torch.testing.assert_close(output_of(second, views).loss, output_of(first, views).loss, rtol=1e-12, atol=0)


@every_objective
def test_head_and_loss_keep_single_precision_under_autocast(name: str) -> None:
    objective, views = small(name).float().eval(), [view.float() for view in pictures()]
    exact = output_of(objective, views).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = output_of(objective, views)
    assert output.phi.dtype == torch.bfloat16
    kept = (output.loss, output.pooled, output.embedding, output.target)
    assert {value.dtype for value in kept} == {torch.float32}
    torch.testing.assert_close(output.loss, exact, rtol=0.1, atol=0.05)


# --- who learns ---------------------------------------------------------------------------------------------------


@every_objective
def test_head_groups_hold_every_trained_weight_beside_the_backbone_once(name: str) -> None:
    objective = small(name)
    grouped = [parameter for group in objective.head_groups() for parameter in group.params]
    backbone = set(objective.backbone.parameters())
    expected = {p for p in objective.parameters() if p.requires_grad} - backbone
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == expected
    assert expected


@every_objective
def test_what_a_run_leaves_behind(name: str) -> None:
    objective = small(name)
    backbones = [
        objective.backbone,
        *(copied for copied, of in objective.momentum_copies() if of is objective.backbone),
    ]
    assert objective.exported is backbones[1 if name == "dino" else 0]


@pytest.mark.parametrize("start", [0.0, 0.9, 0.996, 1.0])
def test_momentum_rises_from_its_start_to_one(start: float) -> None:
    assert rising_momentum(start, 0) == pytest.approx(start, abs=1e-12)
    assert rising_momentum(start, 0.5) == pytest.approx((1 + start) / 2, rel=1e-12)
    assert rising_momentum(start, 1) == 1
    path = [rising_momentum(start, step / 20) for step in range(21)]
    assert path == sorted(path)
    assert rising_momentum(start, 0.25) == pytest.approx(1 - (1 - start) * (1 + math.sqrt(0.5)) / 2, rel=1e-12)


@every_objective
@pytest.mark.parametrize(("progress", "rising"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
def test_before_a_step_momentum_copies_move_by_the_momentum(name: str, progress: float, rising: float) -> None:
    objective = small(name)
    momentum = rising if objective.momentum_rises else 0.9
    pairs = objective.momentum_copies()
    begun = [[p.clone() for p in twin.parameters()] for twin, _ in pairs]
    kept = [{key: buffer.clone() for key, buffer in twin.named_buffers()} for twin, _ in pairs]
    leaders = [[p.detach().clone() for p in online.parameters()] for _, online in pairs]
    objective.before_step(progress)
    for (twin, online), before, buffers, lead in zip(pairs, begun, kept, leaders, strict=True):
        for now, old, leader in zip(twin.parameters(), before, lead, strict=True):
            if now.ndim == 1:  # norms and biases are enough for the loops
                expected = averaged([leader.numpy()], old.numpy(), momentum)
                np.testing.assert_allclose(now.numpy(), expected, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(now, momentum * old + (1 - momentum) * leader, rtol=1e-12, atol=1e-15)
        assert all(torch.equal(p, leader) for p, leader in zip(online.parameters(), lead, strict=True))
        assert all(torch.equal(buffer, buffers[key]) for key, buffer in twin.named_buffers())
    assert not any(p.requires_grad for twin, _ in pairs for p in twin.parameters())


@every_objective
def test_without_momentum_copies_nothing_moves_before_and_after_a_step(name: str) -> None:
    objective = small(name).eval()
    if objective.momentum_copies():
        return
    output = output_of(objective, pictures())
    state = {key: value.clone() for key, value in objective.state_dict().items()}
    objective.before_step(0.5)
    objective.after_step(output)
    assert all(torch.equal(value, state[key]) for key, value in objective.state_dict().items())


@every_objective
def test_momentum_copies_keep_their_own_norm_statistics(name: str) -> None:
    objective = small(name).train()
    pairs = objective.momentum_copies()
    before = [{key: buffer.clone() for key, buffer in copied.named_buffers()} for copied, _ in pairs]
    output_of(objective, pictures())
    for (copied, online), old in zip(pairs, before, strict=True):
        means = [key for key in old if key.endswith("running_mean")]
        ours, theirs = dict(copied.named_buffers()), dict(online.named_buffers())
        assert all(not torch.equal(ours[key], old[key]) for key in means)
        assert not means or any(not torch.equal(ours[key], theirs[key]) for key in means)


# --- the rationale ------------------------------------------------------------------------------------------------


@every_objective
@pytest.mark.parametrize("training", [False, True])
def test_gradcam_of_the_pooled_vector_is_that_of_the_map_where_the_average_is_all_it_sees(
    name: str, training: bool
) -> None:
    """Only if ``pooled`` is what the head saw, and all it saw of φ."""
    objective = small(name).train(training)
    output = output_of(objective, pictures())
    if not objective.average_pooled:
        whole, part = map_gradcam(output.phi, output.loss), pooled_gradcam(output.phi, output.pooled, output.loss)
        assert (whole - part).abs().max() > 0.01 * whole.abs().max()
        return
    scores = [output.loss] if output.positive is None else [output.loss, output.positive]
    for score in scores:
        pooled, whole = pooled_gradcam(output.phi, output.pooled, score), map_gradcam(output.phi, score)
        assert whole.abs().max() > 0
        largest = float(whole.detach().abs().max())
        torch.testing.assert_close(pooled, whole, rtol=1e-6, atol=1e-12 * largest)


@every_objective
def test_rationale_stands_beside_every_objective(name: str) -> None:
    objective = small(name).train()
    torch.manual_seed(0)
    rationale = Rationale(CHANNELS, VARIANTS["finesight"]).double()
    output = output_of(objective, pictures())
    fitted = rationale(output, average_pooled=objective.average_pooled)
    assert fitted.target.shape == fitted.attention.shape == (5, 2, 2)
    assert torch.isfinite(fitted.target).all()
    np.testing.assert_allclose(fitted.target.amax((1, 2)).numpy(), np.ones(5), rtol=1e-12)
    assert (fitted.target >= 0).all()
    signed = map_gradcam(output.phi, output.loss).detach().abs()
    torch.testing.assert_close(fitted.target, signed / signed.amax((1, 2), keepdim=True), rtol=1e-6, atol=1e-10)
    (output.loss.mean() + fitted.loss).backward()
    assert all(p.grad is not None and p.grad.any() for p in rationale.parameters())


@every_objective
def test_rationale_leaves_the_objectives_gradient_as_it_is(name: str) -> None:
    """In the variant ``finesight`` the branch looks on."""
    slopes = []
    for beside in (False, True):
        objective = small(name).train()
        output = output_of(objective, pictures())
        loss = output.loss.mean()
        if beside:
            rationale = Rationale(CHANNELS, VARIANTS["finesight"]).double()
            loss = loss + rationale(output, average_pooled=objective.average_pooled).loss
        loss.backward()
        slopes.append({key: p.grad for key, p in objective.named_parameters() if p.grad is not None})
    assert slopes[0].keys() == slopes[1].keys()
    for key, slope in slopes[0].items():
        torch.testing.assert_close(slopes[1][key], slope, rtol=1e-10, atol=1e-14)


@every_objective
def test_similarity_of_the_pair_as_a_score_is_had_or_refused(name: str) -> None:
    config = VARIANTS["finesight"].model_copy(update={"score": "positive"})
    rationale = Rationale(CHANNELS, config).double()
    objective = small(name)
    output = output_of(objective, pictures())
    if output.positive is None:
        with pytest.raises(ValueError, match="no positive"):
            rationale(output, average_pooled=objective.average_pooled)
    else:
        fitted = rationale(output, average_pooled=objective.average_pooled)
        np.testing.assert_allclose(fitted.target.amax((1, 2)).numpy(), np.ones(5), rtol=1e-12)
        assert (output.positive.abs() <= 1 + 1e-12).all()


@pytest.mark.parametrize("name", ["simclr", "moco", "cvsa", "lewel"])
def test_positive_is_the_cosine_of_embedding_and_target(name: str) -> None:
    output = output_of(small(name), pictures())
    expected = F.cosine_similarity(output.embedding, output.target)
    torch.testing.assert_close(output.positive, expected, rtol=1e-10, atol=1e-13)
