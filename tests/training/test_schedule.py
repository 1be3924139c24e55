import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.training.module import cosine_factor
from reference.schedule import rates


@given(
    per_epoch=st.integers(1, 9),
    epochs=st.integers(1, 12),
    warmup=st.integers(0, 4),
    every=st.sampled_from(["epoch", "step"]),
    floor=st.sampled_from([0.0, 1e-3, 0.25, 1.0]),
)
@settings(max_examples=100, deadline=None)
def test_every_step_of_a_run_against_the_listed_rates(
    per_epoch: int, epochs: int, warmup: int, every: str, floor: float
) -> None:
    warmup = min(warmup, epochs - 1)
    factors = [
        cosine_factor(step, per_epoch, epochs, warmup_epochs=warmup, every=every, min_ratio=floor)
        for step in range(epochs * per_epoch)
    ]
    assert factors == pytest.approx(rates(per_epoch, epochs, warmup, every, floor), rel=1e-9, abs=1e-12)


def test_begins_full_and_falls_towards_zero() -> None:
    by_step = [cosine_factor(step, 10, 5, every="step") for step in range(50)]
    assert by_step[0] == 1
    assert all(a > b > 0 for a, b in pairwise(by_step))
    assert by_step[-1] < 0.002
    assert cosine_factor(25, 10, 5, every="step") == pytest.approx(0.5)
    assert cosine_factor(50, 10, 5) == pytest.approx(0, abs=1e-12)
    assert cosine_factor(500, 10, 5) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("every", ["epoch", "step"])
@pytest.mark.parametrize("warmup", [0.5, 1.0, 2.3])
def test_warm_up_climbs_from_near_zero_to_the_full_rate(every: str, warmup: float) -> None:
    factors = [cosine_factor(step, 20, 10, warmup_epochs=warmup, every=every) for step in range(200)]
    end = math.ceil(warmup * 20)
    assert 0 < factors[0] < 0.1
    assert all(0 < a < b < 1 for a, b in pairwise(factors[:end]))
    steps = [b - a for a, b in pairwise(factors[:end])]
    assert max(steps) == pytest.approx(min(steps))
    assert factors[end] == pytest.approx(1, abs=0.01)
    assert all(a >= b for a, b in pairwise(factors[end:]))


def test_warm_up_as_long_as_the_run_never_falls() -> None:
    factors = [cosine_factor(step, 4, 3, warmup_epochs=3) for step in range(12)]
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(12 / 13)


@pytest.mark.parametrize("every", ["epoch", "step"])
def test_ends_at_the_floor_and_begins_and_warms_up_as_without(every: str) -> None:
    high, low = (
        [cosine_factor(step, 10, 8, warmup_epochs=1.5, every=every, min_ratio=floor) for step in range(90)]
        for floor in (0.2, 0.0)
    )
    assert high[:15] == low[:15]
    assert cosine_factor(0, 10, 8, every=every, min_ratio=0.2) == 1
    assert all(a > b for a, b in zip(high[20:80], low[20:80], strict=True))
    assert high[80:] == pytest.approx([0.2] * 10)
    assert min(high[15:]) == pytest.approx(0.2)
    assert all(a == pytest.approx(0.2 + 0.8 * b) for a, b in zip(high[15:], low[15:], strict=True))
