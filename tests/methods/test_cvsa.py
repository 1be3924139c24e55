"""CVSA: the alignment against loops, and MoCo v2 with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import bare, output_of, pictures, seeded, small, units
from torch import Tensor

from finesight.methods.cvsa import CVSA, CVSAConfig, alignment_loss
from finesight.methods.moco import MoCo, MoCoConfig
from reference.cvsa import alignment, cell_means
from reference.gradcam import cam, differences
from reference.infonce import head as head_reference
from small import small_batch, small_module, take_step


def shares(n: int, cells: int, seed: int = 0) -> Tensor:
    """From nothing to all of a cell; a third of the cells have none of the object."""
    return (1.5 * torch.rand(n, cells, dtype=torch.float64, generator=seeded(seed)) - 0.5).clamp(0, 1)


# --- the alignment ------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 4),
    cells=st.integers(1, 9),
    dim=st.integers(1, 5),
    temperature=st.sampled_from([0.02, 0.2, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_alignment_against_loops(n: int, cells: int, dim: int, temperature: float, seed: int) -> None:
    vectors, key, share = units(n, cells, dim, seed=seed), units(n, dim, seed=seed + 1), shares(n, cells, seed)
    found = alignment_loss(vectors, key, share, temperature)
    assert found.shape == (n,)
    expected = alignment(vectors.numpy(), key.numpy(), share.numpy(), temperature)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12 / temperature)
    assert (found >= -1e-12).all()


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_gradients_against_finite_differences(temperature: float) -> None:
    """One image of the three has no object."""
    vectors, key, share = units(3, 5, 4).requires_grad_(), units(3, 4, seed=1), shares(3, 5, 2)
    share[1] = 0
    alignment_loss(vectors, key, share, temperature).sum().backward()
    slope = differences(
        lambda x: float(alignment(x, key.numpy(), share.numpy(), temperature).sum()), vectors.detach().numpy()
    )
    assert vectors.grad is not None
    np.testing.assert_allclose(vectors.grad.numpy(), slope, rtol=1e-5, atol=1e-6)
    assert abs(slope[0]).max() > 0.01


def test_nothing_is_lost_where_the_similarities_are_the_object() -> None:
    share, temperature = shares(4, 9) + 0.05, 0.2
    cells, key = torch.zeros(4, 9, 3, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64)
    key[:, 0] = 1
    cells[:, :, 0] = temperature * share.log() + torch.arange(4.0).view(4, 1)  # a constant more says nothing
    np.testing.assert_allclose(alignment_loss(cells, key, share, temperature).numpy(), np.zeros(4), atol=1e-12)
    wrong = alignment_loss(cells, key, share.flip(1), temperature)
    assert (wrong > 0.01).all()
    share[:, 4:] = 0
    cells[:, 4:, 0] = -1e3  # far from it where the object is not
    np.testing.assert_allclose(alignment_loss(cells, key, share, temperature).numpy(), np.zeros(4), atol=1e-12)


def test_an_object_that_is_nowhere_asks_for_nothing() -> None:
    cells, key, share = units(3, 5, 4).float().requires_grad_(), units(3, 4, seed=1).float(), shares(3, 5).float()
    share[1] = 0
    loss = alignment_loss(cells, key, share, 0.2)
    assert loss[1] == 0
    assert (loss[[0, 2]] > 0).all()
    loss.sum().backward()
    assert cells.grad is not None
    assert torch.isfinite(cells.grad).all()
    assert not cells.grad[1].any()
    assert cells.grad[0].any()


def test_how_much_of_the_image_the_object_covers_does_not_matter() -> None:
    cells, key, share = units(3, 6, 4), units(3, 4, seed=1), shares(3, 6)
    full = alignment_loss(cells, key, share, 0.2)
    torch.testing.assert_close(alignment_loss(cells, key, share * 0.01, 0.2), full, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(alignment_loss(cells, key, share.flip(1), 0.2), full)


# --- the objective ------------------------------------------------------------------------------------------------


def masked(views: list[Tensor], seed: int = 9) -> list[Tensor]:
    """With an object in each view: some block of it."""
    generator, result = seeded(seed), []
    for view in views:
        alpha = torch.zeros_like(view[:, :1])
        for one in alpha:
            top, left = torch.randint(0, view.shape[2] // 2, (2,), generator=generator).tolist()
            one[:, top : top + view.shape[2] // 3, left : left + view.shape[3] // 3] = 1
        result.append(torch.cat([view, alpha], dim=1))
    return result


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_loss_is_mocos_and_the_weighed_alignment(weight: float) -> None:
    objective, plain = small("cvsa", alignment=weight).eval(), small("moco").eval()
    views = masked(pictures())
    output, moco = output_of(objective, views), output_of(plain, [view[:, :3] for view in views])
    phi = output.phi.detach().numpy()
    n, c, h, w = phi.shape
    layers = [(p.weight.detach().numpy(), p.bias.detach().numpy()) for p in (objective.head[0], objective.head[2])]
    vectors = head_reference(phi.transpose(0, 2, 3, 1).reshape(-1, c), layers).reshape(n, h * w, -1)
    share = cell_means(views[0][:, 3].numpy(), h, w)
    aligned = alignment(vectors, output.target.numpy(), share, objective.config.temperature)
    np.testing.assert_allclose(
        output.loss.detach().numpy(), moco.loss.detach().numpy() + weight * aligned, rtol=1e-6
    )  # shares are single precision
    assert float(output.metrics["alignment"]) == pytest.approx(aligned.mean(), rel=1e-6)
    assert aligned.min() > 0.01
    for field in ("phi", "pooled", "embedding", "target", "positive"):
        assert torch.equal(getattr(output, field), getattr(moco, field)), field


def test_only_the_query_knows_where_its_object_is() -> None:
    objective = small("cvsa").eval()
    views = masked(pictures())
    loss = output_of(objective, views).loss
    here, there = views[0].clone(), views[1].clone()
    here[:, 3], there[:, 3] = here[:, 3].flip(1, 2), there[:, 3].flip(1, 2)
    assert torch.equal(output_of(objective, [views[0], there]).loss, loss)
    assert (output_of(objective, [here, views[1]]).loss != loss).all()


def test_gradcam_needs_the_map_and_gets_it() -> None:
    """φ is the image: nudge every number of it. The gradient at the average would miss what single cells say."""
    objective = bare("cvsa", 3)
    views = [view.clone() for view in masked(pictures(n=2, side=4))]
    views[0].requires_grad_()
    output = output_of(objective, views)
    assert not objective.average_pooled
    (slope,) = torch.autograd.grad(output.loss.sum(), output.phi)

    @torch.no_grad()
    def loss(phi: np.ndarray) -> float:
        nudged = torch.cat([torch.from_numpy(phi), views[0][:, 3:].detach()], dim=1)
        return float(output_of(objective, [nudged, views[1]]).loss.sum())

    phi = output.phi.detach().numpy()
    measured = differences(loss, phi)
    np.testing.assert_allclose(slope.numpy(), measured, rtol=1e-4, atol=1e-7)
    assert np.ptp(measured, axis=(2, 3)).max() > 1e-3, "not the same in every cell"
    assert np.abs(cam(phi, measured)).max() > 1e-3


# --- beside MoCo --------------------------------------------------------------------------------------------------

KNOWN: dict[str, Any] = {"saliency.source": "detector", "focus.source": "saliency", "views.second_paste": 1.0}


def test_without_alignment_training_is_mocos_bit_for_bit() -> None:
    """On the same views: objects known, the key's on another background."""
    ours = small_module("cvsa", **{"objective.alignment": 0.0})
    theirs = small_module("moco-v2", **KNOWN)
    for step in range(3):
        take_step(ours, step)
        take_step(theirs, step)
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert [name for name, value in ours.state_dict().items() if not torch.equal(value, state[name])] == []
    assert {name: ours.metrics[name] for name in theirs.metrics} == theirs.metrics


@pytest.mark.slow
def test_training_aligns() -> None:
    """The same pictures again and again: the cells that agree with the key become those of the object."""
    module = small_module("cvsa", **{"optim.lr": 0.1, "epochs": 30, "objective.alignment": 5.0})
    said = []
    for _ in range(30):
        take_step(module, 0)
        said.append(module.metrics["alignment"])
    assert np.mean(said[-5:]) < 0.8 * np.mean(said[:5])


def test_views_of_a_step_have_masks_and_the_key_is_pasted() -> None:
    seen: list[Tensor] = []
    for paste in ({}, {"views.second_paste": 0.0}):
        module = small_module("cvsa", **paste)
        module.objective.register_forward_pre_hook(lambda _, args: seen.extend(args[0]))
        module.training_step(small_batch(0), 0)
    query, key, plain_query, plain_key = seen
    assert query.shape == key.shape == (8, 4, 32, 32)
    for view in (query, key):
        alpha = view[:, 3]
        assert ((alpha >= 0) & (alpha <= 1)).all()
        assert (alpha.amax((1, 2)) > 0.9).all()
        assert (alpha.amin((1, 2)) < 0.1).any()
    assert torch.equal(plain_query, query)
    assert torch.equal(plain_key[:, 3], key[:, 3])
    assert (plain_key[:, :3] != key[:, :3]).flatten(1).any(1).all()


def test_settings() -> None:
    assert issubclass(CVSA, MoCo)
    assert CVSAConfig().model_dump() == {**MoCoConfig().model_dump(), "alignment": 1.0}
    with pytest.raises(ValueError, match="alignment"):
        CVSAConfig(alignment=-1)
