from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import bare, normal, output_of, pictures, seeded, small
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.errors import FineSightError
from finesight.methods.lewel import LEWEL, LEWELConfig, LEWELHead, LEWELHeadConfig, align
from finesight.methods.lewel_byol import LEWELBYOL
from finesight.nn.norm import JointNorm
from finesight.training.config import build_config
from finesight.training.dotted_keys import flat
from reference.byol import byol as byol_reference
from reference.gradcam import differences
from reference.infonce import info_nce as info_nce_reference
from reference.lewel import aligned as aligned_reference
from reference.lewel import maps as maps_reference
from reference.lewel import mixed, unit
from reference.lewel import vectors as vectors_reference

FORMS = ("lewel", "lewel-byol")
both_forms = pytest.mark.parametrize("name", FORMS)
sizes = given(
    n=st.integers(1, 3),
    heads=st.integers(1, 3),
    maps=st.integers(1, 3),
    each=st.integers(1, 3),
    height=st.integers(1, 3),
    width=st.integers(1, 3),
    seed=st.integers(0, 1000),
)


def head_of(channels: int = 12, **sizes: Any) -> LEWELHead:
    torch.manual_seed(0)
    config = LEWELHeadConfig.model_validate({"dim": 8, "hidden": 10, "heads": 4, **sizes})
    return LEWELHead(channels, config).double()


# --- maps and aligned vectors -------------------------------------------------------------------------------------


@sizes
@settings(max_examples=60, deadline=None)
def test_aligned_pooling_against_loops(
    n: int, heads: int, maps: int, each: int, height: int, width: int, seed: int
) -> None:
    phi = normal(n, heads * each, height, width, seed=seed)
    weights = torch.rand(n, heads * maps, height, width, dtype=torch.float64, generator=seeded(seed))
    found = align(phi.flatten(2), weights.flatten(2), heads)
    expected = [aligned_reference(*pair, heads) for pair in zip(phi.numpy(), weights.numpy(), strict=True)]
    assert found.shape == (n, maps, heads * each)
    np.testing.assert_allclose(found.numpy(), np.array(expected), rtol=1e-10, atol=1e-12)


@sizes
@settings(max_examples=40, deadline=None)
def test_heads_against_loops(n: int, heads: int, maps: int, each: int, height: int, width: int, seed: int) -> None:
    """With a matrix in the place of either MLP."""
    head, scale = head_of(heads * each, heads=heads, dim=heads * maps), 0.1 + seed / 500
    shared, second = linear(head, seed)
    head.scale = scale
    phi = normal(n, heads * each, height, width, seed=seed)
    seen = head(phi)
    said = np.einsum("dc,nchw->nhwd", shared, phi.numpy())
    expected = np.array([maps_reference(image, scale) for image in said])
    np.testing.assert_allclose(seen.maps.detach().numpy().reshape(expected.shape), expected, rtol=1e-9)
    np.testing.assert_allclose(seen.pooled.detach().numpy(), phi.mean((2, 3)).numpy(), rtol=1e-12, atol=1e-14)
    expected = vectors_reference(phi.numpy(), shared, second, heads, scale)
    np.testing.assert_allclose(seen.vectors.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def linear(head: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Replaces both MLPs by matrices."""
    matrices = []
    for place, name in enumerate(("shared", "aligned")):
        old = getattr(head, name)
        layer = nn.Linear(old[0].in_features, old[-1].out_features, bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(normal(*layer.weight.shape, seed=seed + 50 + place))
        setattr(head, name, layer)
        matrices.append(layer.weight.detach().numpy())
    return matrices[0], matrices[1]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_every_map_is_a_distribution_over_the_cells(training: bool, scale: float) -> None:
    seen = head_of(scale=scale).train(training)(normal(3, 12, 4, 5))
    assert seen.maps.shape == (3, 8, 20)
    assert (seen.maps > 0).all()
    np.testing.assert_allclose(seen.maps.sum(2).detach().numpy(), np.ones((3, 8)), rtol=1e-12)
    assert seen.vectors.shape == (3, 1 + 2, 8)


def test_entropy_says_how_sharp_the_maps_are() -> None:
    phi = normal(3, 12, 4, 5)
    entropies = [head_of(scale=scale)(phi).map_entropy() for scale in (1e-4, 0.1, 1.0, 1e4)]
    assert sorted(entropies) == entropies
    assert float(entropies[0]) < 0.1
    assert float(entropies[-1]) == pytest.approx(1, abs=1e-6)
    assert float(head_of()(normal(3, 12, 1, 1)).map_entropy()) == 0
    p = head_of()(phi).maps.detach().numpy()
    assert float(entropies[2]) == pytest.approx(float(-(p * np.log(p)).sum(2).mean() / np.log(20)), rel=1e-12)
    assert not entropies[0].requires_grad


@pytest.mark.parametrize("training", [False, True])
def test_a_constant_map_is_its_average_in_every_cell(training: bool) -> None:
    """The shared weights see no difference: uniform maps, and aligned vectors that are the average."""
    head, phi = head_of().train(training), normal(5, 12, 1, 1).expand(5, 12, 3, 3)
    said: list[Tensor] = []
    head.shared.register_forward_hook(lambda _, __, out: said.append(out.view(5, 10, 8)))
    seen = head(phi)
    torch.testing.assert_close(said[0], said[0][:, :1].expand_as(said[0]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(seen.vectors[:, 0], said[0][:, 0], rtol=0, atol=0)
    np.testing.assert_allclose(seen.maps.detach().numpy(), np.full((5, 8, 9), 1 / 9), rtol=1e-10)
    cells = align(phi.flatten(2), seen.maps, 4)
    torch.testing.assert_close(cells, phi[:, None, :, 0, 0].expand(5, 2, 12), rtol=1e-10, atol=1e-12)


def test_heads_look_with_their_own_maps_at_their_own_channels() -> None:
    """Where the maps of one head change, only its channels do; map m of every head makes vector m."""
    cells, maps = normal(2, 12, 9), normal(2, 8, 9, seed=1).softmax(2)
    before = align(cells, maps, 4)
    for head in range(4):
        for m in range(2):
            moved = maps.clone()
            moved[:, 2 * head + m] = moved[:, 2 * head + m].flip(1)
            changed = (align(cells, moved, 4) != before).any(0)
            expected = torch.zeros(2, 12, dtype=torch.bool)
            expected[m, 3 * head : 3 * head + 3] = True
            assert torch.equal(changed, expected)


def test_batch_norm_takes_the_average_and_all_cells_as_one_batch() -> None:
    """As in the released code: one more position."""
    head, phi = head_of().train(), normal(3, 12, 2, 2)
    head(phi)
    first = head.shared[0].weight.detach().numpy()
    rows = np.concatenate([phi.mean((2, 3)).numpy(), phi.permute(0, 2, 3, 1).reshape(-1, 12).numpy()]) @ first.T
    norm = head.shared[1]
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.1 * rows.mean(0), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.9 + 0.1 * rows.var(0, ddof=1), rtol=1e-9)
    assert int(norm.num_batches_tracked) == int(head.aligned[1].num_batches_tracked) == 1


# --- the losses, where the backbone hands on the views and the MLPs are matrices ------------------------------------


def plain(name: str, share: float, seed: int = 0) -> tuple[Any, dict[str, np.ndarray]]:
    """Four channels, two heads of three maps; and every matrix."""
    objective = bare(name, 4, dim=6, heads=2, aligned_share=share)
    twin = "key_head" if name == "lewel" else "twin_head"
    known = dict(zip(("shared", "aligned"), linear(objective.head, seed), strict=True))
    known |= dict(zip(("twin_shared", "twin_aligned"), linear(getattr(objective, twin), seed + 5), strict=True))
    for place, predictor in enumerate(("predictor", "aligned_predictor") if name == "lewel-byol" else ()):
        layer = nn.Linear(6, 6, bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(normal(6, 6, seed=seed + 70 + place))
        setattr(objective, predictor, layer)
        known[predictor] = layer.weight.detach().numpy()
    return objective, known


def units(x: np.ndarray) -> np.ndarray:
    return np.array([unit(row) for row in x])


def moco_form(objective: Any, known: dict[str, np.ndarray], x: np.ndarray, keys: np.ndarray, share: float) -> Any:
    """Losses, from the view and the twin's vectors of the other one."""
    q = vectors_reference(x, known["shared"], known["aligned"], 2)
    queues = (objective.queue.vectors.numpy(), *[objective.aligned_queue.vectors.numpy()] * 3)
    parts = [info_nce_reference(units(q[:, i]), units(keys[:, i]), queue, 0.2) for i, queue in enumerate(queues)]
    return mixed(parts[0], parts[1:], share)


def byol_form(known: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, still: Any, share: float) -> Any:
    parts = []
    seen = [vectors_reference(view, known["shared"], known["aligned"], 2) for view in (x, y)]
    for i in range(4):
        predictor = known["aligned_predictor" if i else "predictor"]
        said = [v[:, i] @ predictor.T for v in seen]
        parts.append(byol_reference((said[0], said[1]), (still[0][:, i], still[1][:, i])))
    return mixed(parts[0], parts[1:], share)


def twins(known: dict[str, np.ndarray], *views: np.ndarray) -> list[np.ndarray]:
    return [vectors_reference(view, known["twin_shared"], known["twin_aligned"], 2) for view in views]


def expected_losses(name: str, objective: Any, known: Any, x: np.ndarray, y: np.ndarray, share: float) -> np.ndarray:
    if name == "lewel":
        return np.asarray(moco_form(objective, known, x, twins(known, y)[0], share))
    return np.asarray(byol_form(known, x, y, twins(known, x, y), share))


@both_forms
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_losses_against_loops(name: str, share: float, seed: int) -> None:
    objective, known = plain(name, share, seed)
    views = [normal(3, 4, 2, 3, seed=seed + 8), normal(3, 4, 2, 3, seed=seed + 9)]
    output = output_of(objective, views)
    x, y = (view.numpy() for view in views)
    np.testing.assert_allclose(
        output.loss.detach().numpy(), expected_losses(name, objective, known, x, y, share), rtol=1e-9, atol=1e-11
    )
    q, k = vectors_reference(x, known["shared"], known["aligned"], 2), twins(known, y)[0]
    np.testing.assert_allclose(output.embedding.detach().numpy(), units(q[:, 0]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(output.target.numpy(), units(k[:, 0]), rtol=1e-9, atol=1e-12)
    assert not objective.average_pooled
    if name == "lewel":
        cosines = np.array([(units(q[:, i]) * units(k[:, i])).sum(1) for i in range(4)])  # (1 + M, N)
        negatives = units(q[:, 0]) @ objective.queue.vectors.numpy().T
        means = {"positive": cosines[0].mean(), "aligned": cosines[1:].mean(), "negative": negatives.mean()}
        for what, mean in means.items():
            assert output.metrics[f"{what}_similarity"].item() == pytest.approx(mean)


@both_forms
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_gradients_against_finite_differences_with_still_targets(name: str, share: float) -> None:
    """Through the average, the cells and the maps; what the twin says of the same view sends nothing back."""
    objective, known = plain(name, share)
    first, second = normal(2, 4, 2, 2, seed=5).requires_grad_(), normal(2, 4, 2, 2, seed=6).requires_grad_()
    whole = output_of(objective, [first, second]).loss.mean()
    slopes = torch.autograd.grad(whole, [first, second], allow_unused=True)
    x, y = first.detach().numpy(), second.detach().numpy()
    still = twins(known, x, y)

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        if name == "lewel":
            return float(moco_form(objective, known, a, still[1], share).mean())
        return float(byol_form(known, a, b, still, share).mean())

    assert slopes[0] is not None
    np.testing.assert_allclose(slopes[0].numpy(), differences(lambda z: loss(z, y), x), rtol=1e-5, atol=1e-8)
    if name == "lewel":
        assert slopes[1] is None, "its second view is the keys'"
    else:
        np.testing.assert_allclose(slopes[1].numpy(), differences(lambda z: loss(x, z), y), rtol=1e-5, atol=1e-8)


# --- whole objectives -----------------------------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_share_decides_which_heads_learn(name: str, share: float) -> None:
    """The shared one always does: it also says where the aligned ones look."""
    objective = small(name, aligned_share=share)
    output_of(objective, pictures()).loss.mean().backward()
    slopes = {weight: float(p.grad.abs().max()) for weight, p in objective.named_parameters() if p.grad is not None}
    assert all(slope > 0 for weight, slope in slopes.items() if weight.startswith("head.shared"))
    assert all((slope > 0) == (share > 0) for weight, slope in slopes.items() if weight.startswith("head.aligned"))
    idle = [weight for weight, slope in slopes.items() if weight.startswith("aligned_pred") and slope == 0]
    assert bool(idle) == (share == 0 and name == "lewel-byol")


def test_aligned_keys_are_the_images_own_of_maps_drawn_by_the_steps_seed() -> None:
    objective, views = small("lewel").eval(), pictures(8)
    with torch.no_grad():
        keys = F.normalize(objective.key_head(objective.key_backbone(views[1])).vectors, dim=2)[:, 1:]  # (8, 3, D)
    drawn = []
    for seed in (0, 0, 1, 2, 3):
        torch.manual_seed(seed + len(drawn))  # not this one
        pushed = objective(views, seeded(seed)).aligned_key
        assert not pushed.requires_grad
        close = (keys - pushed[:, None]).abs().amax(2) < 1e-9
        assert (close.sum(1) == 1).all()
        drawn.append(close.int().argmax(1).tolist())
    assert drawn[0] == drawn[1]
    assert len({tuple(order) for order in drawn}) == 4
    assert {place for order in drawn for place in order} == {0, 1, 2}


def test_norms_of_the_queries_are_joined_and_those_of_the_keys_are_not() -> None:
    """``joint_norm`` would join them all, and the shuffle would hide nothing."""
    objective = small("lewel")
    assert not LEWEL.joint_norm
    assert LEWELBYOL.joint_norm
    for part, joined in (("backbone", True), ("head", True), ("key_backbone", False), ("key_head", False)):
        norms = [m for m in getattr(objective, part).modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert norms
        assert all(isinstance(norm, JointNorm) == joined for norm in norms)


@both_forms
def test_the_twin_looks_with_its_own_maps(name: str) -> None:
    """Its shared head decides about its aligned vectors; the online one's says nothing about them."""
    twin = "key_head" if name == "lewel" else "twin_head"
    said: list[Tensor] = []
    for change in ("", "head", twin):
        objective = small(name, scale=0.05).eval()
        if change:
            getattr(objective, change).shared[-1].weight.data.neg_()
        getattr(objective, twin).aligned.register_forward_hook(lambda _, __, out: said.append(out))
        output_of(objective, pictures())
    straight, online, own = (said[i * len(said) // 3] for i in range(3))
    assert torch.equal(straight, online)
    assert not torch.allclose(straight, own)


# --- settings -------------------------------------------------------------------------------------------------------


@both_forms
def test_what_cannot_be_divided_among_the_heads_is_refused(name: str) -> None:
    with pytest.raises(FineSightError, match="dim 250 cannot be divided among 4 heads"):
        build_config({"data": "x", "method": name, "objective.dim": 250})
    with pytest.raises(FineSightError, match=r"96 channels cannot be divided among 5 heads: set objective\.heads"):
        small(name, heads=5, dim=10)
    assert small(name, heads=3, dim=9).head.heads == 3


@both_forms
@pytest.mark.parametrize(
    ("setting", "value"),
    [("heads", 0), ("dim", 0), ("hidden", 0), ("scale", 0.0), ("aligned_share", 1.5), ("momentum", -0.1), ("bias", 1)],
)
def test_bad_settings_are_named(name: str, setting: str, value: float) -> None:
    with pytest.raises(FineSightError, match=f"objective.{setting}"):
        build_config({"data": "x", "method": name, f"objective.{setting}": value})


def test_a_queue_shorter_than_a_batch_is_refused() -> None:
    with pytest.raises(FineSightError, match="A queue of 1 cannot hold one batch of 2 keys"):
        small("lewel", queue=1)
    assert len(small("lewel", queue="auto").aligned_queue.vectors) == 50
    assert LEWELConfig().queue == "auto"


@pytest.mark.parametrize("batch", [32, 128, 1024])
def test_settings_of_the_authors(batch: int) -> None:
    found = flat(build_config({"data": "x", "method": "lewel-byol", "batch_size": batch}))
    assert (found["optim.optimizer"], found["optim.lr"]) == ("lars", pytest.approx(3.6 * batch / 1024))
    assert (found["optim.weight_decay"], found["optim.warmup_epochs"]) == (1.5e-6, 10)
    assert (found["views.scale"], found["views.blur"], found["views.second_solarize"]) == ([0.2, 1.0], 1.0, 0.2)
    assert (found["objective.momentum"], found["objective.heads"], found["objective.hidden"]) == (0.996, 4, 4096)
    moco, base = (
        flat(build_config({"data": "x", "method": name, "batch_size": batch})) for name in ("lewel", "moco-v2")
    )
    alike = [name for name in base if name.startswith(("optim.", "views."))]
    assert {name: moco[name] for name in alike} == {name: base[name] for name in alike}
    for name in ("temperature", "momentum", "queue", "key_batch", "dim"):
        assert moco[f"objective.{name}"] == base[f"objective.{name}"]
