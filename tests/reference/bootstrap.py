"""The paired bootstrap query by query, in exact fractions: from given draws, or from every draw there is."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product


def means(a: Sequence[float], b: Sequence[float], draws: Iterable[Sequence[int]]) -> list[Fraction]:
    """Mean of b minus mean of a over each draw of queries, in percent points."""
    found = []
    for draw in draws:
        mean_a = sum(Fraction(float(a[i])) for i in draw) / len(draw)
        mean_b = sum(Fraction(float(b[i])) for i in draw) / len(draw)
        found.append(100 * (mean_b - mean_a))
    return found


def every_draw(queries: int) -> Iterable[Sequence[int]]:
    """All of them are equally likely: what a bootstrap with ever more resamples goes to."""
    return product(range(queries), repeat=queries)


def p_value(differences: Sequence[Fraction]) -> float:
    below = sum(value <= 0 for value in differences) / len(differences)
    above = sum(value >= 0 for value in differences) / len(differences)
    return min(1.0, max(1 / len(differences), 2 * min(below, above)))


def quantile(differences: Sequence[Fraction], share: float) -> float:
    """Between the two nearest of the sorted values, in proportion."""
    ordered = sorted(differences)
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return float(ordered[lower]) + (place - lower) * float(ordered[upper] - ordered[lower])


def resampled_means(values: Sequence[float], sizes: Sequence[int], draws: Iterable[Sequence[int]]) -> list[float]:
    """Mean over all members of the drawn groups, in percent; ``values`` are sums over groups of ``sizes`` members."""
    return [100 * sum(values[i] for i in draw) / sum(sizes[i] for i in draw) for draw in draws]
