"""Names in the order in which people put them."""

from __future__ import annotations

import pytest

from finesight.io.natural import natural_key


@pytest.mark.parametrize(
    ("wanted"),
    [
        ["bird 4.jpg", "bird 14.jpg", "bird 104.jpg", "bird 114.jpg"],
        ["a", "a1", "a1b", "a2", "a10", "b"],
        ["1/2", "1/10", "2/1", "10/1"],
        ["A2", "a3", "B1"],
        ["x", "x" + 30 * "9", "y"],
    ],
)
def test_numbers_count_as_numbers(wanted: list[str]) -> None:
    assert sorted(reversed(wanted), key=natural_key) == wanted


def test_equal_but_for_case_or_zeros_has_one_order() -> None:
    names = ["a01", "a1", "A1", "a001"]
    assert sorted(names, key=natural_key) == sorted(reversed(names), key=natural_key)
