"""Every pooling against its loops, and the masks that they weigh cells by."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from finesight.errors import FineSightError
from finesight.nn.pooling import attention_mask, bilinear, energy_map, narrow_mask, object_share, pool
from finesight.nn.poolings import (
    EARLIER_WEIGHT,
    POOLINGS,
    BranchPooling,
    Pooling,
    find_pooling,
    offered_poolings,
    register_pooling,
)
from reference.boxes import share as share_reference
from reference.gradcam import differences
from reference.pooling import bilinear as bilinear_reference
from reference.pooling import mask as mask_reference
from reference.pooling import pooled as pooled_reference
from reference.two_maps import two_maps as two_maps_reference

FORMS = list(product(["image", "batch"], ["shifted_max", "max"]))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("over", "divisor"), FORMS)
@pytest.mark.parametrize("shift", [0.0, 9.0, -9.0], ids=["mixed", "all positive", "all negative"])
def test_mask_against_loops(over: str, divisor: str, shift: float) -> None:
    attention = random(3, 4, 5) + shift
    mask = attention_mask(attention, over=over, divisor=divisor)
    np.testing.assert_allclose(mask.numpy(), mask_reference(attention.numpy(), over=over, divisor=divisor), rtol=1e-12)


@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    shift=st.floats(-1e3, 1e3),
    size=st.floats(1e-3, 1e3),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_shifted_maximum_keeps_the_mask_between_zero_and_one(
    rows: int, columns: int, shift: float, size: float, seed: int
) -> None:
    attention = random(2, rows, columns, seed=seed) * size + shift
    mask = attention_mask(attention)
    assert torch.isfinite(mask).all()
    assert (mask >= 0).all()
    assert (mask <= 1).all()
    assert (mask.amin((1, 2)) == 0).all()
    if rows * columns > 1:
        assert (mask.amax((1, 2)) > 0.99).all()
        assert torch.equal(mask.flatten(1).argmax(1), attention.flatten(1).argmax(1))


def test_literal_divisor_turns_the_mask_over_where_all_of_it_is_negative() -> None:
    attention = random(2, 3, 3) - 9
    literal, shifted = attention_mask(attention, divisor="max"), attention_mask(attention)
    assert (literal <= 0).all()
    assert (shifted >= 0).all()
    assert torch.equal(literal.flatten(1).argmin(1), shifted.flatten(1).argmax(1))


def test_only_the_batch_range_sees_other_images() -> None:
    attention = random(3, 4, 4) * torch.tensor([0.5, 1, 2]).view(3, 1, 1)
    for i in range(3):
        assert torch.equal(attention_mask(attention[i : i + 1])[0], attention_mask(attention)[i])
    alone = attention_mask(attention[:1], over="batch")[0]
    assert torch.equal(alone, attention_mask(attention)[0])
    assert not torch.allclose(alone, attention_mask(attention, over="batch")[0])


@pytest.mark.parametrize(("over", "divisor"), FORMS)
@pytest.mark.parametrize("value", [0.0, 0.3, -2.0, 1e4])
def test_constant_attention_is_plain_averaging(over: str, divisor: str, value: float) -> None:
    mask = attention_mask(torch.full((2, 3, 3), value), over=over, divisor=divisor)
    phi = random(2, 4, 3, 3).float()
    assert not mask.any()
    assert torch.isfinite(mask).all()
    torch.testing.assert_close(pool(phi, mask), phi.mean((2, 3)))


def test_one_constant_map_among_others_is_averaged_alone() -> None:
    phi, mask = random(3, 4, 3, 3), random(3, 3, 3, seed=1).abs()
    mask[1] = 0
    expected = pooled_reference(phi.numpy(), mask.numpy() + (mask.sum((1, 2)) == 0).numpy()[:, None, None])
    np.testing.assert_allclose(pool(phi, mask).numpy(), expected, rtol=1e-12)


def test_gem_lies_between_mean_and_maximum_and_takes_blank_and_negative_maps() -> None:
    phi = random(2, 5, 4, 4).abs()
    gem = pool(phi, gem=True)
    assert (gem > phi.mean((2, 3))).all()
    assert (gem < phi.amax((2, 3))).all()
    for odd in (torch.zeros(2, 5, 4, 4), -phi.float()):
        assert torch.isfinite(pool(odd, gem=True)).all()
        torch.testing.assert_close(pool(odd, gem=True), torch.full((2, 5), 1e-6), rtol=1e-3, atol=0)


def test_a_peaked_mask_takes_one_cell() -> None:
    phi, mask = random(2, 5, 4, 4).abs(), torch.zeros(2, 4, 4, dtype=torch.float64)
    mask[0, 1, 2] = mask[1, 3, 0] = 0.7
    expected = torch.stack([phi[0, :, 1, 2], phi[1, :, 3, 0]])
    torch.testing.assert_close(pool(phi, mask), expected)
    torch.testing.assert_close(pool(phi, mask, gem=True), expected)


def test_energy_is_the_sum_over_channels() -> None:
    phi = random(2, 5, 3, 4)
    np.testing.assert_allclose(energy_map(phi).numpy(), np.sum(phi.numpy(), axis=1))


# --- every registered pooling -----------------------------------------------------------------------------------------

EVERY = [*POOLINGS.values(), BranchPooling("8"), BranchPooling("fresh", gem=True)]
SHAPES = {"rectangle": (3, 4, 3, 5), "one cell": (2, 3, 1, 1), "one channel": (1, 1, 4, 2)}


def class_token(images: int, channels: int) -> torch.Tensor:
    return random(images, channels, seed=3)


def earlier_map(images: int, rows: int, columns: int) -> torch.Tensor:
    """Of twice the cells each way, less one row: a side that is no multiple."""
    return random(images, 5, 2 * rows - 1, 2 * columns, seed=4).abs() + 0.01


def expected(pooling: Pooling, phi: torch.Tensor, mask: torch.Tensor, region: torch.Tensor | None) -> np.ndarray:
    """What loops give, for a mask that is the same for all kinds; its responses are mask and 1 - mask.

    The class token is that of ``class_token``, the earlier map that of ``earlier_map``.
    """
    if pooling.needs_class_token and pooling.mask is None:
        token = class_token(len(phi), phi.shape[1]).numpy()
        if pooling.name == "class-token":
            return token
        means = pooled_reference(phi.numpy(), np.ones(mask.shape))
        return np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in (token, means)], 1)
    weights = torch.ones_like(mask) if pooling.mask is None else mask
    cover = torch.ones_like(mask) if region is None else region
    if pooling.per_projection:
        responses = torch.stack([mask, 1 - mask], 1) * cover[:, None]
        return bilinear_reference(phi.numpy(), responses.numpy())
    inside = weights * cover
    inside = torch.where(inside.sum((1, 2), keepdim=True) > 0, inside, cover)  # a mask that says nothing
    if pooling.needs_earlier:
        earlier = earlier_map(len(phi), *phi.shape[2:])
        return two_maps_reference(phi.numpy(), earlier.numpy(), inside.numpy(), EARLIER_WEIGHT)
    found = pooled_reference(phi.numpy(), inside.numpy(), power=3.0 if pooling.gem else 1.0)
    return found * inside.numpy().sum((1, 2))[:, None] if pooling.total else found


@pytest.mark.parametrize("region", [False, True], ids=["whole", "region"])
@pytest.mark.parametrize("mask", ["any", "zero", "constant"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("pooling", EVERY, ids=lambda pooling: pooling.name)
def test_a_pooling_is_what_loops_give(pooling: Pooling, shape: tuple[int, ...], mask: str, region: bool) -> None:
    phi, (n, channels, *grid) = random(*shape).abs() + 0.01, shape
    fill = {"any": random(n, *grid, seed=1).abs(), "zero": torch.zeros(n, *grid), "constant": torch.ones(n, *grid) / 3}
    weights = fill[mask].double()
    part = random(n, *grid, seed=2).abs().clamp(max=1) if region else None
    masks = {} if pooling.mask is None else {pooling.mask: weights}
    responses = torch.stack([weights, 1 - weights], 1) if pooling.per_projection else None
    more = {"class_token": class_token(n, channels)} if not pooling.can_narrow else {}
    more |= {"earlier": earlier_map(n, *grid)} if pooling.needs_earlier else {}
    found = pooling(phi, masks, responses, part, **more)
    assert found.shape == (n, pooling.width(channels, 2, 5))
    np.testing.assert_allclose(found.numpy(), expected(pooling, phi, weights, part), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pooling", EVERY, ids=lambda pooling: pooling.name)
def test_a_pooling_describes_itself(pooling: Pooling) -> None:
    again = find_pooling(pooling.name)
    assert (type(again), vars(again)) == (type(pooling), vars(pooling))
    assert pooling.words
    assert pooling.needs_branch == pooling.shown_mask.startswith("rationale")
    assert pooling.needs_objects == (pooling.mask == "box")
    assert pooling.spaces[-1] == "average"
    assert find_pooling(pooling.indexed).width(8, 4) <= 16, "an index keeps no wide features"
    assert pooling.can_narrow or pooling.needs_class_token
    assert not (pooling.offered and pooling.needs_objects), "no user's folder has what an oracle needs"


def test_a_pooling_of_its_own_kind_is_no_sum_over_cells() -> None:
    assert all(pooling.is_sum_over_cells == pooling.can_narrow for pooling in EVERY)
    largest = type("Max", (Pooling,), {"name": "max", "__call__": lambda self, phi, *_: phi.amax((2, 3))})()
    assert not largest.is_sum_over_cells


def test_which_are_offered_and_kept() -> None:
    names = ["average", "gem", "energy", "energy-gem", "attention", "attention-gem", "class-token"]
    names += ["class-token-and-average", "rationale", "rationale-gem", "rationale-sum"]
    names += ["rationale-gem-two-maps", "energy-gem-two-maps", "bilinear"]
    assert list(offered_poolings()) == names
    assert [name for name, pooling in POOLINGS.items() if pooling.trainable] == ["average", "rationale", "bilinear"]
    spaces = {name: find_pooling(name).spaces for name in ("average", "bilinear", "rationale-gem")}
    assert spaces == {
        "average": ("average",),
        "bilinear": ("rationale", "average"),
        "rationale-gem": ("rationale-gem", "average"),
    }


@pytest.mark.parametrize("name", ["", "gem-average", "rationale:", "boxes"])
def test_an_unknown_pooling(name: str) -> None:
    with pytest.raises(FineSightError, match=f"no pooling '{name}'"):
        find_pooling(name)


def test_two_poolings_of_one_name() -> None:
    with pytest.raises(FineSightError, match="Two poolings are called 'gem'"):
        register_pooling(type("Other", (Pooling,), {"name": "gem"}))


def test_a_mask_that_sees_nothing_in_the_region() -> None:
    """Then all of the region counts alike, not all of the picture."""
    mask, region = torch.zeros(2, 2, 2), torch.tensor([[[1.0, 0.5], [0, 0]]] * 2)
    mask[1, 0, 1] = 1
    assert narrow_mask(mask, region).tolist() == [[[1, 0.5], [0, 0]], [[0, 0.5], [0, 0]]]
    assert torch.equal(narrow_mask(None, region), region)


# --- bilinear ---------------------------------------------------------------------------------------------------------


def test_bilinear_gradients_against_finite_differences() -> None:
    phi, responses, slope = random(2, 3, 2, 3), random(2, 4, 2, 3, seed=1), random(2, 12, seed=2)
    phi.requires_grad_()
    responses.requires_grad_()
    (bilinear(phi, responses) * slope).sum().backward()

    def score(x: np.ndarray, a: np.ndarray) -> float:
        return float((bilinear_reference(x, a) * slope.numpy()).sum())

    x, a = phi.detach().numpy(), responses.detach().numpy()
    np.testing.assert_allclose(phi.grad.numpy(), differences(lambda v: score(v, a), x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(responses.grad.numpy(), differences(lambda v: score(x, v), a), rtol=0, atol=1e-9)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation makes, backwards too."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, list | tuple) else [made]:
            if isinstance(value, torch.Tensor):
                self.numbers = max(self.numbers, value.untyped_storage().nbytes() // value.element_size())
        return made


def test_bilinear_pooling_makes_no_copies_of_phi() -> None:
    """One for each projection would be 26 million numbers here, forwards and backwards."""
    phi, responses = torch.randn(8, 512, 14, 14, requires_grad=True), torch.randn(8, 32, 14, 14, requires_grad=True)
    with Largest() as largest:
        bilinear(phi, responses).square().sum().backward()
    assert phi.numel() <= largest.numbers <= 2 * phi.numel()
    with Largest() as largest:
        (responses[:, :, None] * phi[:, None]).mean((3, 4)).square().sum().backward()
    assert largest.numbers >= 32 * phi.numel(), "copies would be noticed"


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (1, 1), (2, 8), (32, 32)])
@pytest.mark.parametrize("box", [(0, 0, 32, 32), (8, 16, 8, 8), (3, 5, 13, 1), (31, 0, 1, 32), (0, 0, 0, 0)])
def test_object_share_is_the_area_of_the_box_in_each_cell(
    box: tuple[int, int, int, int], rows: int, columns: int
) -> None:
    x, y, width, height = box
    objects = torch.zeros(2, 32, 32, dtype=torch.bool)
    objects[1, y : y + height, x : x + width] = True
    share = object_share(objects, rows, columns)
    assert not share[0].any()
    np.testing.assert_allclose(share[1].numpy(), share_reference(box, 32, rows, columns), atol=1e-6)
