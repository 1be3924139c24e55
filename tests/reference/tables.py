"""A table's cells in plain Python: mean, sample standard deviation, and differences seed by seed."""

from collections.abc import Mapping, Sequence
from math import sqrt


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def sample_std(numbers: Sequence[float]) -> float:
    """Over one less than there are: the mean was taken from the same numbers."""
    middle = mean(numbers)
    return sqrt(sum((number - middle) ** 2 for number in numbers) / (len(numbers) - 1))


def gains(first: Mapping[int, float], second: Mapping[int, float], *, first_is_frozen: bool = False) -> list[float]:
    """``second`` minus ``first`` for each seed that both have; a frozen one has seed 0 alone, for all of them."""
    found = []
    for seed in sorted(second):
        if first_is_frozen:
            found.append(second[seed] - first[0])
        elif seed in first:
            found.append(second[seed] - first[seed])
    return found


def cell(numbers: Sequence[float], *, signed: bool = False) -> str:
    if len(numbers) == 0:
        return "–"
    sign = "+" if signed and round(mean(numbers), 2) >= 0 else ""
    shown = f"{sign}{mean(numbers):.2f}"
    return shown if len(numbers) == 1 else f"{shown} ± {sample_std(numbers):.2f}"
