import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from finesight.errors import FineSightError
from finesight.evaluation.localization import localization
from finesight.evaluation.metrics.localization import Inside, Pointing
from reference.localization import points_inside, share_inside

attention_in_object, pointing_game = Inside().value, Pointing().value
SIZES = [
    ((7, 7), (32, 32)),
    ((4, 6), (9, 23)),
    ((1, 1), (5, 4)),
    ((1, 5), (3, 3)),
    ((8, 8), (8, 8)),
    ((9, 9), (4, 5)),
]


@pytest.mark.parametrize(("small", "large"), SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_measures_match_the_loop_reference(small: tuple[int, int], large: tuple[int, int], dtype: type) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        attention = rng.random(small).astype(dtype)
        mask = rng.random(large) < 0.4
        mask[0, 0] = True
        assert attention_in_object(attention, mask) == pytest.approx(
            share_inside(attention.astype(np.float64), mask), rel=1e-9
        )
        if attention.size > 1:
            assert pointing_game(attention, mask) == points_inside(attention.astype(np.float64), mask)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, (3, 4), elements=st.floats(0, 1e6)), arrays(np.bool_, (8, 7)))
def test_share_is_a_share_and_adds_up_with_the_background(attention: np.ndarray, mask: np.ndarray) -> None:
    share = attention_in_object(attention, mask)
    if attention.max() < 1e-290:  # zero, or lost when weighted
        return
    assert 0 <= share <= 1 + 1e-12
    assert share + attention_in_object(attention, ~mask) == pytest.approx(1)


def test_peak_on_and_off_the_object() -> None:
    attention = np.zeros((7, 7))
    attention[2, 5] = 1
    mask = np.zeros((70, 70), dtype=bool)
    mask[20:30, 50:60] = True  # the very cell
    assert pointing_game(attention, mask)
    assert not pointing_game(attention, ~mask)
    # the tent reaches half a cell out on each side: 3/4 of its mass per axis lies in the cell
    assert attention_in_object(attention, mask) == pytest.approx(0.75**2)


def test_plateau_counts_by_its_larger_part_and_alike_when_mirrored() -> None:
    attention = np.zeros((4, 4))
    attention[0, 1] = 1  # at 8 x: rows 0-3 above the cell's center are a plateau, two columns wide
    mask = np.zeros((32, 32), dtype=bool)
    mask[1:, :] = True
    for a, m in [(attention, mask), (attention[::-1], mask[::-1]), (attention.T, mask.T)]:
        assert pointing_game(a, m)
        assert not pointing_game(a, ~m)
    mask[:, 12:] = False  # now the object has one of the two columns, less the first row
    assert not pointing_game(attention, mask)


def test_maps_that_point_nowhere() -> None:
    mask = np.ones((5, 5), dtype=bool)
    assert attention_in_object(np.zeros((3, 3)), mask) == 0
    assert not pointing_game(np.zeros((3, 3)), mask)
    assert not pointing_game(np.full((3, 3), 0.1), mask)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_bad_attention_is_refused(bad: float) -> None:
    attention = np.ones((3, 3))
    attention[1, 1] = bad
    with pytest.raises(ValueError, match="attention must be"):
        attention_in_object(attention, np.ones((6, 6), dtype=bool))
    with pytest.raises(ValueError, match=r"must be \(H, W\)"):
        attention_in_object(np.ones((1, 3, 3)), np.ones((6, 6), dtype=bool))


def test_over_images_of_different_sizes() -> None:
    rng = np.random.default_rng(1)
    attentions = [rng.random((7, 7)) for _ in range(12)]
    masks = [rng.random((20 + i, 30 - i)) < 0.1 + i / 20 for i in range(12)]
    scores = localization(iter(attentions), iter(masks))
    pairs = list(zip(attentions, masks, strict=True))
    assert scores["inside"] == pytest.approx(100 * np.mean([share_inside(a, m) for a, m in pairs]))
    assert scores["pointing"] == pytest.approx(100 * np.mean([points_inside(a, m) for a, m in pairs]))
    assert scores["object_area"] == pytest.approx(100 * np.mean([m.mean() for m in masks]))
    assert scores["images"] == 12


def test_missing_and_empty_masks_are_left_out_and_blank_maps_count_as_zero() -> None:
    full, peak = np.ones((4, 4), dtype=bool), np.eye(3)
    scores = localization([peak, peak, peak, np.zeros((3, 3))], [full, None, ~full, full])
    assert scores == {"inside": 50.0, "pointing": 50.0, "object_area": 100.0, "images": 2}
    with pytest.raises(FineSightError, match="masks or boxes"):
        localization([np.ones((2, 2))], [None])
    with pytest.raises(ValueError, match="shorter"):
        localization([np.eye(2)] * 2, [np.ones((4, 4), dtype=bool)])
