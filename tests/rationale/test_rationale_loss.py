import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from finesight.nn.objective_output import ObjectiveOutput
from finesight.rationale.config import VARIANTS, RationaleConfig, VariantName
from finesight.rationale.loss import (
    RATIONALE_METRICS,
    Rationale,
    kl_from_uniform,
    rationale_kl,
    rationale_metrics,
    scaled_target,
)
from ranks import in_ranks
from reference.gradcam import cam, differences
from reference.pooling import mask as mask_reference
from reference.rationale import branch as branch_reference
from reference.rationale import divergence, softmax
from reference.rationale import kl as kl_reference
from reference.rationale import target as target_reference

SCALES = ["batch_mean", "image", "cells", "max", "std"]
TARGETS = list(product(["relu", "abs"], SCALES))


def configured(**switches: object) -> RationaleConfig:
    return RationaleConfig.model_validate(switches)


def maps(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def hand_made(
    seed: int = 0, n: int = 2, c: int = 4, h: int = 2, w: int = 3, *, average: bool = True
) -> ObjectiveOutput:
    """An output no objective made: a loss that is some smooth function of the pooled vector."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.rand(n, c, h, w, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.rand(h, w, dtype=torch.float64, generator=generator)
    pooled = phi.mean((2, 3)) if average else (phi * weights).mean((2, 3))
    direction = torch.randn(n, c, dtype=torch.float64, generator=generator)
    unit = F.normalize(pooled, dim=1)
    similarity = (unit * F.normalize(direction, dim=1)).sum(1)
    loss = (1 - similarity).square() + torch.sin(3 * unit).sum(1)
    return ObjectiveOutput(loss, phi, pooled, unit, unit.detach(), positive=similarity)


def fitted(config: RationaleConfig, channels: int = 4) -> Rationale:
    torch.manual_seed(1)
    return Rationale(channels, config).double()


# --- the divergence -----------------------------------------------------------------------------------------------


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    tau=st.sampled_from([0.1, 0.4, 1.0, 3.0]),
    over=st.sampled_from(["positions", "rows"]),
    direction=st.sampled_from(["target_attention", "attention_target"]),
    reduction=st.sampled_from(["mean", "sum", "elements"]),
    attention_scale=st.sampled_from(["raw", "image", "batch"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_kl_against_loops(
    shape: tuple[int, int, int], tau: float, over: str, direction: str, reduction: str, attention_scale: str, seed: int
) -> None:
    target, attention = maps(*shape, seed=seed).abs(), maps(*shape, seed=seed + 1)
    config = configured(
        tau=tau, softmax_over=over, divergence=direction, reduction=reduction, attention_scale=attention_scale
    )
    expected = kl_reference(
        target.numpy(),
        attention.numpy(),
        tau=tau,
        over=over,
        direction=direction,
        reduction=reduction,
        attention_scale=attention_scale,
    )
    assert float(rationale_kl(target, attention, config)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("direction", ["target_attention", "attention_target"])
@pytest.mark.parametrize("over", ["positions", "rows"])
def test_kl_is_zero_for_equal_maps_and_positive_for_others(direction: str, over: str) -> None:
    config = configured(divergence=direction, softmax_over=over)
    target = maps(2, 3, 4)
    shift = torch.arange(2.0).view(2, 1, 1)  # a softmax does not see it
    assert float(rationale_kl(target, target + shift, config)) == pytest.approx(0, abs=1e-14)
    assert float(rationale_kl(target, maps(2, 3, 4, seed=1), config)) > 0.1


@pytest.mark.filterwarnings("ignore:reduction")
def test_released_and_algorithm_forms_are_pytorch_calls() -> None:
    """The calls of the public code and of Algorithm A1, written out."""
    target, attention = maps(3, 4, 4).abs(), maps(3, 4, 4, seed=1)
    shifted = attention - attention.min()
    stretched = shifted / (1e-7 + shifted.max())
    released = F.kl_div(F.log_softmax(stretched, -1), F.softmax(target, -1), reduction="sum")
    torch.testing.assert_close(rationale_kl(target, attention, VARIANTS["released"]), released, rtol=1e-10, atol=0)
    logs = F.log_softmax(attention.flatten(1) / 0.4, 1)
    algorithm = F.kl_div(logs, F.softmax(target.flatten(1) / 0.4, 1), reduction="mean")
    torch.testing.assert_close(
        rationale_kl(target, attention, configured(reduction="elements")), algorithm, rtol=1e-10, atol=0
    )


# --- the target ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rectify", "scale"), TARGETS)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e4])
def test_target_against_loops(rectify: str, scale: str, size: float) -> None:
    signed = maps(3, 4, 5) * size
    scaled = scaled_target(signed, configured(rectify=rectify, target_scale=scale))
    np.testing.assert_allclose(scaled.numpy(), target_reference(signed.numpy(), rectify, scale), rtol=1e-10)


@pytest.mark.parametrize(("rectify", "scale"), TARGETS)
@pytest.mark.parametrize(("value", "side"), [(0.0, 3), (1e-30, 3), (-1e-4, 1), (0.1, 3), (100.0, 1)])
def test_maps_that_say_nothing_stay_finite(rectify: str, scale: str, value: float, side: int) -> None:
    """Constant or blank maps (a map of one cell is always constant) are uniform targets, in single precision too."""
    for switches in ({}, {"attention_scale": "image"}, {"divergence": "attention_target"}, {"softmax_over": "rows"}):
        config = configured(rectify=rectify, target_scale=scale, **switches)
        signed = torch.full((2, side, side), value, requires_grad=True)
        attention = torch.full((2, side, side), 0.3, requires_grad=True)
        loss = rationale_kl(scaled_target(signed, config), attention, config)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
        assert torch.isfinite(attention.grad).all()
        assert torch.isfinite(signed.grad).all()


def test_literal_scale_leaves_a_uniform_target_and_the_maximum_does_not() -> None:
    """Why the variant ``finesight`` exists: G of a batch-mean loss is too small for its softmax to say anything."""
    signed = maps(128, 7, 7) * 1e-2  # of the size GradCAM has per image
    literal = scaled_target(signed, VARIANTS["paper"])
    scaled = scaled_target(signed, VARIANTS["finesight"])
    assert float(kl_from_uniform(literal, 0.4)) < 1e-7
    assert float(kl_from_uniform(scaled, 0.4)) > 0.1


# --- the whole ----------------------------------------------------------------------------------------------------


def expected_loss(
    phi: np.ndarray, attended: np.ndarray, slope: np.ndarray, filters: np.ndarray, config: RationaleConfig
) -> float:
    """L_KL by loops; the target is made of ``phi``, the attention of ``attended``."""
    target = target_reference(cam(phi, slope), config.rectify, config.target_scale)
    attention = branch_reference(attended, filters, unit=config.input_norm == "l2")
    return kl_reference(
        target,
        attention,
        tau=config.tau,
        over=config.softmax_over,
        direction=config.divergence,
        reduction=config.reduction,
        attention_scale=config.attention_scale,
    )


CASES = {
    "finesight": VARIANTS["finesight"],
    "paper": VARIANTS["paper"],
    "released, bare branch": VARIANTS["released"].model_copy(update={"branch_norm": "none"}),
    "negative": configured(score="negative_loss", rectify="relu", attention_scale="image"),
    "positive": configured(score="positive", target_scale="cells", detach_target=False, encoder_gradient=1.0),
    "std": configured(target_scale="std", detach_target=False, encoder_gradient=0.0),
}


@pytest.mark.parametrize("average", [True, False], ids=["pooled gradient", "map gradient"])
@pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
def test_rationale_of_any_objective_with_its_gradients(config: RationaleConfig, average: bool) -> None:
    """A hand-made output is enough; loss and gradient are those of the loops and of finite differences."""
    config = config.model_copy(update={"projections": 3})
    output = hand_made(average=average)
    rationale = fitted(config)
    result = rationale(output, average_pooled=average)
    score = {"loss": output.loss, "negative_loss": -output.loss, "positive": output.positive}[config.score]
    (slope,) = (g.numpy() for g in torch.autograd.grad(score.sum(), output.phi, retain_graph=True))
    phi = output.phi.detach().numpy()
    filters = rationale.branch.filters.weight.detach().numpy()[:, :, 0, 0]
    assert result.loss.item() == pytest.approx(expected_loss(phi, phi, slope, filters, config), rel=1e-9)
    np.testing.assert_allclose(
        result.target.numpy(), target_reference(cam(phi, slope), config.rectify, config.target_scale), rtol=1e-9
    )

    gradient, of_filters = torch.autograd.grad(
        result.loss, [output.phi, rationale.branch.filters.weight], materialize_grads=True
    )
    through_attention = differences(lambda x: expected_loss(phi, x, slope, filters, config), phi)
    through_target = differences(lambda x: expected_loss(x, phi, slope, filters, config), phi)
    expected = config.encoder_gradient * through_attention + (0 if config.detach_target else through_target)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-6 * abs(expected).max() + 1e-10)
    some = filters[:2]
    nudged = differences(lambda w: expected_loss(phi, phi, slope, np.concatenate([w, filters[2:]]), config), some)
    np.testing.assert_allclose(
        of_filters[:2, :, 0, 0].numpy(), nudged, rtol=1e-5, atol=1e-6 * abs(of_filters.numpy()).max()
    )


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_exactly_the_configured_share_reaches_the_encoder(share: float) -> None:
    whole = hand_made()
    full = fitted(configured(encoder_gradient=1.0))
    everything, all_filters = torch.autograd.grad(
        full(whole, average_pooled=True).loss, [whole.phi, full.branch.filters.weight]
    )
    part = fitted(configured(encoder_gradient=share))
    result = part(whole, average_pooled=True)
    gradient, filters = torch.autograd.grad(
        result.loss, [whole.phi, part.branch.filters.weight], materialize_grads=True
    )
    assert everything.abs().max() > 1e-4
    assert torch.equal(gradient, share * everything)
    assert torch.equal(filters, all_filters)
    assert torch.equal(result.loss, full(whole, average_pooled=True).loss)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("blank", [False, True])
def test_every_variant_is_finite_under_autocast_and_on_blank_maps(variant: VariantName, blank: bool) -> None:
    torch.manual_seed(0)
    raw = torch.zeros(4, 8, 3, 3) if blank else torch.rand(4, 8, 3, 3)
    phi = raw.bfloat16().requires_grad_()
    rationale = Rationale(8, VARIANTS[variant])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = phi.mean((2, 3), dtype=torch.float32)
        output = ObjectiveOutput((pooled - 0.3).square().sum(1), phi, pooled, pooled, pooled)
        result = rationale(output, average_pooled=True)
    assert {result.loss.dtype, result.target.dtype, result.attention.dtype} == {torch.float32}
    result.loss.backward()
    assert (phi.grad is None) == (rationale.config.encoder_gradient == 0)
    reached = [] if phi.grad is None else [phi.grad]
    for tensor in (result.loss, *reached, *(p.grad for p in rationale.parameters()), *result.metrics.values()):
        assert torch.isfinite(tensor).all()


# --- health -------------------------------------------------------------------------------------------------------


def test_kl_from_uniform_against_loops() -> None:
    attention = maps(3, 4, 5)
    uniform = np.full(20, 1 / 20)
    expected = np.mean([divergence(softmax(image.numpy().ravel(), 0.4), uniform) for image in attention])
    assert float(kl_from_uniform(attention, 0.4)) == pytest.approx(expected, rel=1e-10)
    assert float(kl_from_uniform(torch.full((2, 3, 3), 7.0), 0.4)) == pytest.approx(0, abs=1e-6)
    peak = torch.zeros(1, 3, 3).index_fill(1, torch.tensor(0), 0)
    peak[0, 1, 1] = 1000
    assert float(kl_from_uniform(peak, 0.4)) == pytest.approx(math.log(9))


def test_metrics_and_the_entropy_of_the_mask_as_a_share_of_the_uniform_one() -> None:
    attention = maps(3, 3, 4) - 50
    found = rationale_metrics(torch.tensor(0.5), maps(3, 3, 4).abs(), attention, 0.4)
    assert list(found) == list(RATIONALE_METRICS)
    assert float(found["kl"]) == 0.5
    masks = mask_reference(attention.numpy(), over="image", divisor="shifted_max")
    shares = [m.ravel() / m.sum() for m in masks]
    expected = np.mean([-sum(p * math.log(p) for p in share if p > 0) for share in shares]) / math.log(12)
    assert float(found["mask_entropy"]) == pytest.approx(expected, rel=1e-6)
    peak = torch.zeros(1, 3, 4)
    peak[0, 1, 2] = 1
    for one, entropy in ((peak, 0.0), (torch.full((1, 3, 4), 0.3), 1.0)):
        metrics = rationale_metrics(torch.tensor(0.5), peak, one, 0.4)
        assert float(metrics["mask_entropy"]) == pytest.approx(entropy, abs=1e-6)


# --- several processes ------------------------------------------------------------------------------------------------

RANK_IMAGES = 3


def signed_maps() -> Tensor:
    return torch.randn(2 * RANK_IMAGES, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def loss_task(rank: int, maps: Tensor | None = None) -> dict[str, Tensor]:
    """Target and the gradient of L_KL by A, of this rank's images (of all, if they are given)."""
    mine = signed_maps()[RANK_IMAGES * rank : RANK_IMAGES * (rank + 1)] if maps is None else maps
    found = {}
    for reduction, scale in product(["mean", "sum", "elements"], SCALES):
        config = RationaleConfig(target_scale=scale, reduction=reduction, rectify="relu")
        attention = (mine.flip(1) * 2).requires_grad_()
        target = scaled_target(mine, config)
        (slope,) = torch.autograd.grad(rationale_kl(target, attention, config), attention)
        found |= {f"{reduction} {scale} target": target, f"{reduction} {scale} slope": slope}
    return found


def test_two_processes_have_the_target_and_the_slope_of_one(tmp_path: Path) -> None:
    """Gradients are averaged over ranks: a rank's own is twice its part of the whole."""
    ranks, whole = in_ranks(loss_task, tmp_path), loss_task(0, signed_maps())
    for name, expected in whole.items():
        joined = torch.cat([rank[name] for rank in ranks]) / (len(ranks) if name.endswith("slope") else 1)
        torch.testing.assert_close(joined, expected, rtol=1e-12, atol=1e-15, msg=name)
