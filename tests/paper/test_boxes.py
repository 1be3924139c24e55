"""Boxes against loops over pixels, and where crops about a box begin."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from torch import Tensor

from finesight.data.views import ViewConfig, ViewParams, sample_params
from finesight.paper.objects.boxes import NO_BOX, boxes_of, focused_corners, place_in_boxes
from finesight.training.config import FocusConfig
from reference import focus as reference
from small import seeded

EVERYTHING = (0.0, 0.0, 1.0, 1.0)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=seeded(seed))


def random_boxes(count: int, seed: int = 0) -> Tensor:
    """Any two rows and any two columns, in order."""
    corners = uniform(count, 2, 2, seed=seed).sort(1).values  # (N, low and high, rows and columns)
    return corners.flatten(1).float()


# --- boxes --------------------------------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    resolution=st.integers(2, 33),
    threshold=st.sampled_from([0.0103171, 0.1031713, 0.3719317, 0.8031713, 0.9987319]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_boxes_against_loops(rows: int, columns: int, resolution: int, threshold: float, seed: int) -> None:
    """Peaked maps: of an even one nearly everything is above any threshold."""
    maps = 5 * uniform(3, rows, columns, seed=seed) ** 8 - 2
    found = boxes_of(maps, threshold, resolution)
    assert found.shape == (3, 4)
    expected = [reference.box(one.numpy(), threshold, resolution) for one in maps]
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e4])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (2, 5)])
def test_a_constant_map_is_a_box_of_everything_and_the_others_keep_theirs(value: float, shape: tuple[int, int]) -> None:
    maps = torch.full((3, *shape), value)
    peak = torch.zeros(shape)
    peak[0, 0] = 1.0
    maps[1] = peak if peak.numel() > 1 else maps[1]
    boxes = boxes_of(maps, 0.1, 32)
    assert boxes[0].tolist() == boxes[2].tolist() == list(EVERYTHING)
    np.testing.assert_allclose(boxes[1], reference.box(maps[1].double().numpy(), 0.1, 32), atol=1e-7)


def test_the_box_holds_all_that_is_above_and_touches_it_on_every_side() -> None:
    maps = torch.zeros(1, 8, 8)
    maps[0, 2, 1], maps[0, 5, 6], maps[0, 3, 3] = 0.6, 1.0, 0.05
    assert boxes_of(maps, 0.1, 8)[0].tolist() == [2 / 8, 1 / 8, 6 / 8, 7 / 8]
    assert boxes_of(maps, 0.7, 8)[0].tolist() == [5 / 8, 6 / 8, 6 / 8, 7 / 8]
    assert boxes_of(maps, 0.01, 8)[0].tolist() == [2 / 8, 1 / 8, 6 / 8, 7 / 8], "the third lies between the two"


def test_a_peak_that_coarse_pixels_miss_is_a_box_of_everything() -> None:
    """And never one that is upside down."""
    maps = torch.zeros(2, 8, 8)
    maps[0, 0, 0], maps[1, 2, 2] = 1.0, 1.0  # pixels of a quarter lie between the second and third of four cells
    found = boxes_of(maps, 0.1, 2).tolist()
    assert found == [list(EVERYTHING), [0.0, 0.0, 0.5, 0.5]]


def test_a_box_does_not_depend_on_the_scale_of_its_map_or_on_other_maps() -> None:
    maps, order = uniform(6, 5, 5) ** 6, torch.tensor([4, 2, 0, 5, 1, 3])
    boxes = boxes_of(maps, 0.3, 40)
    assert len({tuple(box) for box in boxes.tolist()}) == 6
    assert torch.equal(boxes_of(maps[order], 0.3, 40), boxes[order])
    assert torch.equal(boxes_of(maps * 1e-3 - 7, 0.3, 40), boxes)
    for i in range(6):
        assert torch.equal(boxes_of(maps[i : i + 1], 0.3, 40)[0], boxes[i])


# --- corners ------------------------------------------------------------------------------------------------------


def arranged(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, sizes and crops that fit."""
    sizes = torch.randint(1, 300, (count, 2), generator=seeded(seed)).double()
    crop = (sizes * uniform(count, 2, seed=seed + 1)).ceil().clamp(min=1)
    return random_boxes(count, seed + 2), sizes, crop


def expected_edges(boxes: Tensor, sizes: Tensor, crop: Tensor) -> np.ndarray:
    """(N, axes, low and high)"""
    return np.array(
        [
            [reference.edges(float(b[a]), float(b[2 + a]), int(s[a]), int(c[a])) for a in range(2)]
            for b, s, c in zip(boxes, sizes, crop, strict=True)
        ]
    )


def test_a_steady_hand_begins_half_way_between_the_edges() -> None:
    """Beta(β, β) of an enormous β is one half."""
    boxes, sizes, crop = arranged(500)
    found = focused_corners(boxes, sizes, crop, 1e12, seeded())
    expected = expected_edges(boxes, sizes, crop).mean(2)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)
    assert expected.std() > 10


@pytest.mark.parametrize("beta", [1e-6, 1e-3])
def test_a_beta_whose_gammas_are_all_but_zero_still_gives_numbers(beta: float) -> None:
    boxes, sizes, crop = arranged(500)
    found, edges = focused_corners(boxes, sizes, crop, beta, seeded()).numpy(), expected_edges(boxes, sizes, crop)
    assert ((found >= edges[..., 0] - 1e-9) & (found <= edges[..., 1] + 1e-9)).all()


@pytest.mark.parametrize("alpha", [0.1, 0.6, 1.0, 3.0])
def test_the_place_between_the_edges_is_beta_distributed(alpha: float) -> None:
    count = 2000
    boxes = torch.tensor([[0.3, 0.2, 0.6, 0.9]]).repeat(count, 1)
    sizes, crop = torch.tensor([[200.0, 300.0]]).double().repeat(count, 1), torch.tensor([[50.0, 80.0]]).double()
    found = focused_corners(boxes, sizes, crop.repeat(count, 1), alpha, seeded(5)).numpy()
    (top, bottom), (left, right) = expected_edges(boxes[:1], sizes[:1], crop)[0]
    assert (top, bottom, left, right) == pytest.approx((35, 95, 20, 220), abs=1e-4)
    shares = (found - [top, left]) / [bottom - top, right - left]
    for axis in range(2):
        assert stats.kstest(shares[:, axis], stats.beta(alpha, alpha).cdf).pvalue > 0.01
        for other in {0.1, 0.6, 1.0, 3.0} - {alpha}:
            assert stats.kstest(shares[:, axis], stats.beta(other, other).cdf).pvalue < 1e-4
    assert abs(stats.spearmanr(shares[:, 0], shares[:, 1]).statistic) < 0.08, "the axes are drawn apart"


# --- crops of a view ----------------------------------------------------------------------------------------------


def focused(config: ViewConfig, sizes: Tensor, generator: torch.Generator, boxes: Tensor, beta: float) -> ViewParams:
    return sample_params(config, sizes, generator, partial(place_in_boxes, boxes=boxes, beta=beta))


SCALES = [(0.2, 1.0), (0.05, 0.14), (1.0, 1.0), (1e-4, 1e-3), (0.9, 1.0)]


def random_sizes(count: int, seed: int = 0, most: int = 400) -> Tensor:
    return torch.randint(1, most, (count, 2), generator=seeded(seed))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("beta", [1e-3, 0.6, 50.0])
@pytest.mark.parametrize("kind", ["random", "points", "lines", "everything", "border", "none"])
def test_every_crop_lies_in_its_image(scale: tuple[float, float], beta: float, kind: str) -> None:
    count = 600
    boxes = random_boxes(count, 1)
    if kind == "points":
        boxes[:, 2:] = boxes[:, :2]
    elif kind == "lines":
        boxes[:, 2] = boxes[:, 0]
    elif kind == "everything":
        boxes[:] = torch.tensor(EVERYTHING)
    elif kind == "border":  # a sliver at one of the four edges
        boxes[0::4] = torch.tensor([0.0, 0.0, 0.0, 1.0])
        boxes[1::4] = torch.tensor([1.0, 0.0, 1.0, 1.0])
        boxes[2::4] = torch.tensor([0.0, 0.0, 1.0, 0.0])
        boxes[3::4] = torch.tensor([0.0, 1.0, 1.0, 1.0])
    elif kind == "none":
        boxes[:] = NO_BOX
    sizes = random_sizes(count, 2)
    sizes[:3] = torch.tensor([[1, 1], [1, 399], [399, 1]])
    top, left, height, width = focused(ViewConfig(scale=scale), sizes, seeded(3), boxes, beta).crop.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (height >= 1).all()
    assert (width >= 1).all()
    assert (top + height <= sizes[:, 0]).all()
    assert (left + width <= sizes[:, 1]).all()


def test_centers_lie_in_the_box_where_the_crop_has_room_and_as_near_as_can_be_where_not() -> None:
    count = 4000
    sizes, boxes = 200 + random_sizes(count, 1, 100), random_boxes(count, 2)  # none so long that no crop fits
    crop = focused(ViewConfig(scale=(0.05, 0.5)), sizes, seeded(3), boxes, 0.6).crop.double()
    inside = []
    for axis in range(2):
        size, extent, half = sizes[:, axis].double(), crop[:, 2 + axis], crop[:, 2 + axis] / 2
        low, high = boxes[:, axis].double() * size, boxes[:, 2 + axis].double() * size
        center = crop[:, axis] + half
        room = (low >= half) & (high <= size - half)
        assert 0.1 < room.double().mean() < 0.9
        assert ((center >= low - 0.5 - 1e-9) & (center <= high + 0.5 + 1e-9))[room].all()  # whole pixels
        beyond = high <= half  # the whole box is nearer to the border than the crop's center can be
        assert beyond.any()
        assert (crop[:, axis] == 0)[beyond].all()
        behind = low >= size - half
        assert behind.any()
        assert (crop[:, axis] == size - extent)[behind].all()
        inside.append(room)
    assert (inside[0] & inside[1]).any()


def test_an_image_whose_crop_never_fitted_stays_centered() -> None:
    """All of the area in a ratio that a strip does not have: the largest centered crop, box or not."""
    sizes = torch.tensor([[400, 20], [20, 400], [300, 10]]).repeat(50, 1)
    boxes = torch.tensor([[0.0, 0.0, 0.1, 0.1], [0.9, 0.9, 1.0, 1.0], list(EVERYTHING)]).repeat_interleave(50, 0)
    config = ViewConfig(scale=(1.0, 1.0))
    crop = focused(config, sizes, seeded(), boxes, 0.6).crop
    room = sizes - crop[:, 2:]
    assert torch.equal(crop[:, :2], room // 2)
    assert (room.amax(1) > 100).all()
    assert torch.equal(crop, sample_params(config, sizes, seeded()).crop)


def fields(params: object) -> dict[str, Tensor]:
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}  # type: ignore[arg-type]


def test_rows_without_a_box_are_cropped_as_if_there_were_none_at_all() -> None:
    sizes, boxes = 200 + random_sizes(200, 1, 100), random_boxes(200, 2)
    unknown = torch.arange(200) % 3 == 0
    boxes[unknown] = NO_BOX
    plain = sample_params(ViewConfig(), sizes, seeded(4))
    found = focused(ViewConfig(), sizes, seeded(4), boxes, 0.6)
    assert torch.equal(found.crop[unknown], plain.crop[unknown])
    assert torch.equal(found.crop[:, 2:], plain.crop[:, 2:]), "how large a crop is has nothing to do with the box"
    assert (found.crop[~unknown, :2] != plain.crop[~unknown, :2]).any(1).double().mean() > 0.8


def test_nothing_but_where_crops_begin_depends_on_the_boxes() -> None:
    """So every rank may know other boxes than it did an epoch ago and still draw as the others do."""
    sizes = random_sizes(50)
    drawn = [
        fields(focused(ViewConfig(), sizes, seeded(4), boxes, 0.6))
        for boxes in (torch.full((50, 4), NO_BOX), random_boxes(50), random_boxes(50, 1))
    ]
    for other in drawn[1:]:
        assert not torch.equal(other["crop"], drawn[0]["crop"])
        assert {name for name in other if not torch.equal(other[name], drawn[0][name])} == {"crop"}


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"source": "magic"}, {"every_n_epochs": 0}, {"threshold": 1.0}, {"threshold": -0.1}, {"beta": 0.0}, {"alpha": 1}],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FocusConfig.model_validate(wrong)
