"""The charts, judged by their pixels."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from finesight.plots import figures
from finesight.plots.style import ACCENT, INK, QUIET
from png import Pixels, count, decode


def colored(pixels: Pixels, color: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (pixels == np.rint(np.array(to_rgb(color)) * 255)).all(-1)
    return found


def k_curve(points: dict[int, list[float]], baselines: dict[str, list[float]], label: str) -> bytes:
    return figures.k_curves([figures.KCurve(points, baselines, label)])


# --- curves and bars


def test_a_falling_curve_falls_in_the_picture() -> None:
    pixels = decode(figures.curves({"loss": [(i, 100.0 - i) for i in range(50)]}))
    line = colored(pixels, ACCENT)
    line[: pixels.shape[0] // 6] = False  # the last value, written in the same color
    heights = [np.flatnonzero(line[:, x]).mean() for x in np.flatnonzero(line.any(0))]
    assert np.corrcoef(heights, np.arange(len(heights)))[0, 1] > 0.99


def test_order_of_writing_does_not_matter() -> None:
    points = [(i, float(i % 7)) for i in range(40)]
    assert figures.curves({"loss": points}) == figures.curves({"loss": points[20:] + points[:20]})


@pytest.mark.parametrize(
    "points",
    [
        [(10, 1.5)],
        [(0, 0.0)],
        [(1, 2.0), (2, 2.0)],
        [(1, np.nan), (2, 2.0), (3, np.inf)],
        [(i, np.nan if i % 3 else i * 1e-9) for i in range(300)],
        [(i * 10**7, 1e12 + i) for i in range(5)],
    ],
)
@pytest.mark.filterwarnings("error")
def test_odd_curves_are_drawn(points: list[tuple[float, float]]) -> None:
    pixels = decode(figures.curves({"loss": points}))
    panel = pixels[pixels.shape[0] // 5 if len(points) < 3 else 0 :]  # a few points show below the last value, too
    assert count(panel, ACCENT) > 20


def test_smoothing_keeps_a_constant_and_a_gap() -> None:
    pixels = decode(figures.curves({"loss": [(i, np.nan if 50 <= i < 60 else 3.0) for i in range(200)]}))
    line = colored(pixels, ACCENT)
    line[: pixels.shape[0] // 5] = False  # the last value, written in the same color
    columns = np.flatnonzero(line.any(0))
    assert np.ptp(np.flatnonzero(line.any(1))) <= 4, "level"
    assert np.diff(columns).max() > 0.03 * np.ptp(columns), "a gap"


@pytest.mark.parametrize("metrics", [{}, {"loss": []}, {"loss": [(1, np.nan)]}])
def test_empty_metrics_give_a_sentence_instead_of_axes(metrics: dict[str, list[tuple[float, float]]]) -> None:
    pixels = decode(figures.curves(metrics))
    assert pixels.shape[0] < 200
    assert pixels.min() < 200
    assert figures.curves(metrics) == figures.curves({})


def test_bars_are_as_long_as_the_scores_and_the_best_is_marked() -> None:
    pixels = decode(figures.score_bars([{"system": "a", "rank-1": 20.0}, {"system": "b", "rank-1": 80.0}]))
    upper, lower = pixels[: pixels.shape[0] // 2 - 20], pixels
    quiet = colored(upper, QUIET).sum(1).max()
    best = colored(lower, ACCENT).sum(1).max()
    assert best / quiet == pytest.approx(4, rel=0.05)


@pytest.mark.filterwarnings("error")
def test_bars_without_a_value_or_a_table() -> None:
    decode(figures.score_bars([{"system": "a", "mAP": None}, {"system": "b", "mAP": np.float32(3)}, {"system": "c"}]))
    decode(figures.score_bars([{"system": "a", "mAP": 0.0, "text": "52 ± 3"}]))
    blank = figures.score_bars([])
    assert blank == figures.score_bars([{}]) == figures.score_bars([{"system": "a", "mAP": np.nan}])


# --- a line for each system


def test_all_kinds_are_named_within_the_picture() -> None:
    row = figures.DotRow("a system", {f"{word} of the object": 50.0 + i for i, word in enumerate("abcde")})
    pixels = decode(figures.dot_rows([row], xlabel="percent", accent="b of the object"))
    edge = np.concatenate([pixels[:, :4], pixels[:, -4:]], axis=1)
    assert (edge == 255).all(), "nothing is cut off"


# --- scores over K

POINTS = {1: [40.0, 42.0], 4: [44.0, 46.0], 32: [50.0, 51.0], 256: [47.0, 47.5]}
BASELINES = {"MoCo v2, average": [30.0, 34.0]}


def line_heights(png: bytes) -> dict[int, float]:
    """Of the mean's line, by column; from above."""
    line = colored(decode(png), ACCENT)
    return {int(x): float(np.flatnonzero(line[:, x]).mean()) for x in np.flatnonzero(line.any(0))}


def test_k_doubles_evenly_and_the_line_goes_through_the_means() -> None:
    """Means in a straight line over log K make a straight line, from the first K to the last."""
    heights = line_heights(k_curve({2**i: [10.0 + i - 1, 10.0 + i + 1] for i in range(9)}, {}, "rank-1"))
    columns = np.array(list(heights))
    assert np.corrcoef(columns, list(heights.values()))[0, 1] < -0.999
    assert columns.max() - columns.min() > 300


def test_the_order_of_k_does_not_matter() -> None:
    assert k_curve(POINTS, {}, "x") == k_curve(dict(reversed(POINTS.items())), {}, "x")


def test_every_seed_is_a_dot() -> None:
    def pale(png: bytes) -> int:
        """Dots are the line's color, thinner."""
        wanted = np.rint(255 * (0.45 * np.array(to_rgb(ACCENT)) + 0.55))
        return int((np.abs(decode(png).astype(float) - wanted).max(-1) <= 2).sum())

    far = {1: [40.0, 60.0], 32: [40.0, 60.0]}
    with_third = {1: [40.0, 60.0, 56.0], 32: [40.0, 60.0, 56.0]}
    assert pale(k_curve(far, {}, "x")) > 40
    assert pale(k_curve(with_third, {}, "x")) > pale(k_curve(far, {}, "x"))


def test_a_baseline_is_a_dashed_line_at_its_mean_with_its_name_beside_it() -> None:
    flat = {1: [40.0], 256: [40.0]}
    pixels = decode(k_curve(flat, {"MoCo v2": [30.0, 34.0], "top": [48.0]}, "rank-1"))
    dark = colored(pixels, INK)
    line = colored(pixels, ACCENT)
    right = np.flatnonzero(line.any(0)).max()
    rows = [y for y in range(40, len(pixels) - 60) if dark[y, 60:right].sum() > 0.35 * (right - 60)]
    assert rows, "no dashes"
    assert max(dark[y, 60:right].sum() for y in rows) < 0.8 * (right - 60), "dashed, not solid"
    own = np.flatnonzero(line[:, right - 20]).mean()
    assert min(rows) > own, "32 is below 40"
    assert (pixels[:, right + 25 :].max(-1) < 140).sum() > 50, "the names"


def names_of(baselines: dict[str, list[float]]) -> list[tuple[int, int]]:
    """Rows of the picture that the names right of the panel take, from above."""
    pixels = decode(k_curve({1: [40.0], 256: [40.0]}, baselines, "x"))
    right = np.flatnonzero(colored(pixels, ACCENT).any(0)).max() + 25
    ink = (pixels[:, right:].max(-1) < 140).any(1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], ink.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def test_names_of_near_baselines_do_not_overlap() -> None:
    apart = names_of({"aaaa": [30.0], "bbbb": [50.0]})
    near = names_of({"aaaa": [44.0], "bbbb": [44.001]})
    assert len(apart) == len(near) == 2
    assert near[0][1] < near[1][0]
    assert apart[1][0] - apart[0][1] > 3 * (near[1][0] - near[0][1])


def test_two_panels_are_twice_as_wide() -> None:
    one = decode(k_curve(POINTS, BASELINES, "rank-1"))
    two = decode(figures.k_curves([figures.KCurve(POINTS, BASELINES, name) for name in ("rank-1", "mAP")]))
    assert two.shape[1] == 2 * one.shape[1]


@pytest.mark.parametrize(
    ("points", "baselines"),
    [
        ({32: [50.0]}, {}),
        ({32: [50.0], 64: []}, {"a": []}),
        ({1: [3.0], 2: [3.0]}, {"a": [3.0]}),
        (POINTS, {"$x_{" * 20: [1.0], "鳥": [2.0]}),
        ({k: [1.0] for k in (3, 5, 100)}, BASELINES),
    ],
)
@pytest.mark.filterwarnings("error")
def test_odd_curves_over_k_are_drawn(points: dict[int, list[float]], baselines: dict[str, list[float]]) -> None:
    assert count(decode(k_curve(points, baselines, "rank-1 (%)")), INK) > 20


def test_no_points_give_a_sentence() -> None:
    blank = figures.k_curves([])
    assert decode(blank).shape[0] < 200
    assert blank == k_curve({}, BASELINES, "x") == k_curve({1: []}, BASELINES, "x")


# --- all


@pytest.mark.parametrize("name", ["$a_{", "\\frac", "鳥の名前", "line\nbreak", "\udcff.jpg", "x" * 500])
@pytest.mark.filterwarnings("error")
def test_any_name_can_be_drawn(name: str) -> None:
    decode(figures.curves({name: [(1, 2.0), (2, 3.0)]}))
    decode(figures.score_bars([{"system": name, name: 50.0}]))
    decode(k_curve(POINTS, {name: [41.0]}, name))


def test_the_users_matplotlib_settings_neither_leak_in_nor_change() -> None:
    before = figures.curves({"loss": [(1, 2.0), (2, 1.0)]})
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert figures.curves({"loss": [(1, 2.0), (2, 1.0)]}) == before
        assert matplotlib.rcParams["font.size"] == 30
