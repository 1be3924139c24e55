"""The branch inside training's own pooling: what the head sees, who learns, and the GradCAM of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.methods.base import full_precision
from finesight.nn.pooling import Pool
from finesight.rationale.branch import FittingBranch
from finesight.rationale.config import VARIANTS, RationaleConfig
from finesight.rationale.gradcam import pooled_gradcam
from finesight.rationale.interaction import BranchPool, branch_pool
from finesight.training.module import TrainingModule
from finesight.training.save_encoder import make_encoder
from reference.gradcam import average
from reference.pooling import bilinear as bilinear_reference
from reference.pooling import mask as mask_reference
from reference.pooling import pooled as pooled_reference
from reference.rationale import branch as branch_reference
from small import small_batch, small_module, take_step

CHANNELS = 6


def made(**switches: Any) -> tuple[FittingBranch, RationaleConfig]:
    torch.manual_seed(0)
    config = RationaleConfig.model_validate({"projections": 4, **switches})
    return FittingBranch(CHANNELS, config).double(), config


def maps(n: int = 3, seed: int = 1) -> Tensor:
    """φ as after a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, CHANNELS, 4, 5, dtype=torch.float64, generator=generator).relu()


def filters(branch: FittingBranch) -> np.ndarray:
    return branch.filters.weight.detach().numpy()[:, :, 0, 0]


# --- what the head sees -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize(
    ("divisor", "over", "input_norm"),
    [
        ("shifted_max", "image", "l2"),
        ("max", "image", "none"),
        ("shifted_max", "batch", "none"),
        ("max", "batch", "l2"),
    ],
)
def test_masked_pool_is_equations_8_and_9(power: float, divisor: str, over: str, input_norm: str) -> None:
    settings = {"mask_power": power, "mask_divisor": divisor, "mask_range": over, "input_norm": input_norm}
    branch, config = made(**settings)
    phi = maps()
    attention = branch_reference(phi.numpy(), filters(branch), unit=input_norm == "l2")
    assert attention.max() > 0
    mask = mask_reference(attention, over=over, divisor=divisor) ** power
    pool = branch_pool("rationale", CHANNELS, branch, config)
    np.testing.assert_allclose(pool(phi).detach().numpy(), pooled_reference(phi.numpy(), mask), rtol=1e-10)
    assert (pool.width, pool.uniform) == (CHANNELS, False)
    assert not np.allclose(pool(phi).detach().numpy(), average(phi.numpy()))


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_where_all_of_a_is_negative_the_literal_mask_weighs_by_the_shifted_map(power: float) -> None:
    """Every weight of Eq. 8 has the other sign there: its magnitude is what says where."""
    branch, config = made(mask_divisor="max", input_norm="none", mask_power=power)
    with torch.no_grad():
        branch.filters.weight.copy_(-branch.filters.weight.abs())
    phi = maps() + 0.1
    attention = branch_reference(phi.numpy(), filters(branch), unit=False)
    assert (attention < 0).all()
    literal = mask_reference(attention, over="image", divisor="max")
    assert (literal <= 0).all()
    found = branch_pool("rationale", CHANNELS, branch, config)(phi).detach().numpy()
    np.testing.assert_allclose(found, pooled_reference(phi.numpy(), (-literal) ** power), rtol=1e-10)
    assert not np.allclose(found, average(phi.numpy()))


def test_equation_9_as_printed_is_a_sum() -> None:
    """In dual pooling too; features have the direction of the mean, other lengths, and each image another one."""
    branch, config = made(mask_divisor="max", input_norm="none", mask_power=1.0, mask_total="sum")
    phi = maps()
    attention = branch_reference(phi.numpy(), filters(branch), unit=False)
    mask = mask_reference(attention, over="image", divisor="max")
    found = branch_pool("rationale", CHANNELS, branch, config)(phi).detach().numpy()
    expected = pooled_reference(phi.numpy(), mask) * mask.sum((1, 2))[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    mean = branch_pool("rationale", CHANNELS, branch, config.model_copy(update={"mask_total": "mean"}))(phi)
    ratios = found / mean.detach().numpy()
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[:, :1], ratios.shape), rtol=1e-10)
    assert np.ptp(ratios[:, 0]) > 0.1


@pytest.mark.parametrize(
    ("method", "variant", "expected"),
    [
        ("lcr", "paper", "rationale-sum"),
        ("lcr-dual-pooling", "paper", "rationale-sum"),
        ("lcr-dual-pooling", "finesight", "rationale"),
        ("lcr", "released", "rationale"),
        ("lcr", "finesight", "rationale-gem"),
    ],
)
def test_the_variant_paper_sums_wherever_the_mask_pools(method: str, variant: str, expected: str) -> None:
    module = small_module(method, **{"rationale.variant": variant})
    assert module.config.pooling == expected
    if method == "lcr-dual-pooling":
        assert isinstance(module.objective.pool, BranchPool)
        assert module.objective.pool.pooling.name == expected
    views = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    encoder = make_encoder(module.config, module)
    found, mean = encoder.embed(views), encoder.embed(views, "rationale")
    if expected == "rationale-sum":
        torch.testing.assert_close(found, mean * encoder.attend(views).sum((1, 2))[:, None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_bilinear_pool_is_that_of_the_responses(norm: str) -> None:
    branch, config = made(branch_norm=norm)
    phi = maps()
    pool = branch_pool("bilinear", CHANNELS, branch, config).eval()
    assert isinstance(pool, BranchPool)
    expected = bilinear_reference(phi.numpy(), branch.responses(phi).detach().numpy())
    np.testing.assert_allclose(pool(phi).detach().numpy(), expected, rtol=1e-10, atol=1e-15)
    assert (pool.width, pool.uniform) == (4 * CHANNELS, False)


def test_poolings_by_name() -> None:
    branch, config = made()
    assert isinstance(branch_pool("rationale", CHANNELS, branch, config), BranchPool)
    plain = branch_pool("average", CHANNELS, branch, config)
    assert type(plain) is Pool
    assert plain.uniform
    assert not list(plain.parameters())
    np.testing.assert_allclose(plain(maps()).numpy(), average(maps().numpy()), rtol=1e-12)


@pytest.mark.parametrize("name", ["rationale", "bilinear"])
def test_half_precision_maps_are_pooled_in_single_precision(name: Any) -> None:
    torch.manual_seed(0)
    config = VARIANTS["finesight"]
    pool = branch_pool(name, 128, FittingBranch(128, config), config)
    phi = torch.rand(2, 128, 3, 3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(phi):  # as every objective pools
        pooled = pool(phi)
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled, pool(phi.float()))


# --- in a run -----------------------------------------------------------------------------------------------------

METHODS = ("lcr-dual-pooling", "moco-bilinear", "sam-ssl-bilinear")


@pytest.mark.parametrize("method", METHODS)
def test_head_pool_and_rationale_have_one_branch_and_it_has_one_step(method: str) -> None:
    module = small_module(method)
    assert module.rationale is not None
    assert isinstance(module.objective.pool, BranchPool)
    assert module.objective.pool.branch is module.rationale.branch
    trained = [p for group in module.optimizer.param_groups for p in group["params"]]
    assert len(trained) == len({id(p) for p in trained})
    assert {id(p) for p in trained} == {id(p) for p in module.parameters() if p.requires_grad}
    heads = [p for group in module.objective.head_groups() for p in group.params]
    assert not {id(p) for p in heads} & {id(p) for p in module.rationale.branch.parameters()}


@pytest.mark.parametrize("method", METHODS)
def test_the_key_pools_by_a_branch_of_its_own_that_follows(method: str) -> None:
    module = small_module(method, **{"objective.momentum": 0.75, "optim.lr": 1.0, "rationale.branch_lr": 0.1})
    objective: Any = module.objective
    online, twin = objective.pool.branch.filters.weight, objective.key_pool.branch.filters.weight
    assert torch.equal(online, twin)
    assert not twin.requires_grad
    take_step(module, 0)
    assert not torch.equal(online, twin)
    before = twin.clone()
    objective.before_step()
    torch.testing.assert_close(twin, 0.75 * before + 0.25 * online.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["lcr-dual-pooling", "moco-bilinear", "byol"])
def test_the_contrast_teaches_the_branch_that_pools(method: str) -> None:
    """Even where the KL counts for nothing."""
    settings: dict[str, Any] = {"rationale.nu": 0.0}
    if method == "byol":
        settings |= {"rationale.variant": "finesight", "train_pooling": "rationale"}
    module = small_module(method, **settings)
    assert module.rationale is not None
    module.training_step(small_batch(0), 0).backward()
    slope = module.rationale.branch.filters.weight.grad
    assert slope is not None
    assert slope.abs().max() > 0
    aside = small_module("lcr", **{"rationale.nu": 0.0})
    assert aside.rationale is not None
    aside.training_step(small_batch(0), 0).backward()
    assert not aside.rationale.branch.filters.weight.grad.any()


@pytest.mark.parametrize("method", METHODS)
def test_an_encoder_pools_as_training_did(method: str, tmp_path: Path) -> None:
    """Saved and loaded, one image at a time."""
    module = small_module(method)
    for step in range(3):
        take_step(module, step)
    module.eval()
    make_encoder(module.config, module).save(tmp_path / "encoder")
    encoder = Encoder.load(tmp_path / "encoder")
    views = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = module.objective.pool(module.objective.backbone(views))
    found = encoder.embed(views)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert not torch.allclose(found[:, : encoder.channels], encoder.embed(views, "average"), rtol=1e-2)


def test_a_loaded_encoder_keeps_the_chosen_projections(tmp_path: Path) -> None:
    settings = {"rationale.projections": 6, "rationale.keep": "top", "rationale.keep_count": 2}
    module = small_module("lcr", **settings, **{"rationale.keep_from": 1})
    assert module.rationale is not None
    views = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = make_encoder(module.config, module)
    everything = before.attend(views)
    module.rationale.branch.keep([1, 4])
    encoder = make_encoder(module.config, module)
    chosen, feature = encoder.attend(views), encoder.embed(views)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder")
    assert loaded.branch is not None
    assert torch.equal(loaded.branch.kept, torch.tensor([False, True, False, False, True, False]))
    assert torch.equal(loaded.attend(views), chosen)
    assert torch.equal(loaded.embed(views), feature)
    assert not torch.equal(everything, chosen)


@pytest.mark.parametrize("pooling", ["rationale", "bilinear"])
@pytest.mark.parametrize("method", ["cvsa", "lewel", "lewel-byol"])
def test_a_method_that_looks_at_cells_refuses_another_pooling(method: str, pooling: str) -> None:
    with pytest.raises(FineSightError, match="looks at single cells"):
        small_module(method, **{"rationale.variant": "finesight", "train_pooling": pooling})


# --- GradCAM ------------------------------------------------------------------------------------------------------


class Recorded:
    """A network that is run once, in float64, and says the same again afterwards."""

    def __init__(self, network: nn.Module) -> None:
        self.forward, self.said, self.next = network.forward, [], None
        network.forward = self

    def __call__(self, images: Tensor) -> Tensor:
        if self.next is not None:
            return next(self.next)
        self.said.append(self.forward(images.double()))
        return self.said[-1]


class Step:
    """A training step in float64 whose loss can be had again with one cell of the query's map made stronger."""

    def __init__(self, module: TrainingModule) -> None:
        self.module = module.double()
        networks = dict(module.objective.named_children())
        self.networks = {name: Recorded(each) for name, each in networks.items() if name.endswith("backbone")}
        handle = module.objective.register_forward_pre_hook(self._remember)
        assert module.rationale is not None
        module.rationale.register_forward_hook(self._keep)
        module.training_step(small_batch(0, module.config.batch_size), 0)
        handle.remove()

    def _remember(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self.views, generator, self.labels = args
        self.state = generator.get_state()

    def _keep(self, _: nn.Module, args: tuple[Any, ...], fitted: Any) -> None:
        (self.output,), self.target = args, fitted.target

    @torch.no_grad()
    def loss(self, cell: tuple[int, int, int], strength: float) -> float:
        """The map that is nudged is that of the first view, which the loss is attributed to."""
        image, y, x = cell
        for name, network in self.networks.items():
            said = [phi.clone() for phi in network.said]
            if name == "backbone":
                said[0][image, :, y, x] *= 1 + strength
            network.next = iter(said)
        generator = torch.Generator()
        generator.set_state(self.state)
        return float(self.module.objective(self.views, generator, self.labels).loss.sum())

    def measured(self, step: float = 1e-4) -> np.ndarray:
        """Σ_c φ_c ∂L/∂φ_c of each cell: how the loss answers to that cell growing by a share."""
        result = np.zeros(self.target.shape)
        for cell in np.ndindex(*result.shape):
            result[cell] = (self.loss(cell, step) - self.loss(cell, -step)) / (2 * step)
        return result


@pytest.mark.parametrize("base", ["moco-v2", "byol"])
@pytest.mark.parametrize("pooling", ["average", "rationale", "bilinear"])
def test_the_target_of_a_step_is_what_nudging_cells_measures(base: str, pooling: str) -> None:
    """Whatever the head sees of φ, what the branch is taught is the gradient of the map itself."""
    settings: dict[str, Any] = {"rationale.variant": "finesight", "train_pooling": pooling, "batch_size": 3}
    if pooling == "bilinear":
        settings["rationale.branch_norm"] = "batch"
    module = small_module(base, **settings, **{"rationale.projections": 4})
    with torch.no_grad():  # timm begins residual branches at zero
        for p in module.objective.backbone.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
    step = Step(module)
    strength = np.abs(step.measured())
    expected = strength / strength.max((1, 2), keepdims=True)
    found = step.target.numpy()
    assert found.shape == (3, 4, 4)
    assert strength.max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    output = step.output
    assert module.objective.average_pooled == (pooling == "average")
    if pooling == "bilinear":
        assert output.pooled.shape == (3, 4 * output.phi.shape[1]), "wider than φ: no gradient that fits its cells"
        return
    signed = pooled_gradcam(output.phi, output.pooled, output.loss).detach().abs()
    gap = (signed / signed.amax((1, 2), keepdim=True) - step.target).abs().max()
    assert gap < 1e-8 if pooling == "average" else gap > 0.1
