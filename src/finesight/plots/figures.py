"""Charts of the report, as PNG bytes; sheets of pictures are in ``sheets``.

They are read by people who know birds or cars, not networks: every figure has its own words, and color is never the
only sign.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from finesight.plots.style import ACCENT, FAINT, INK, QUIET, blank, drawn, short


@drawn
def curves(metrics: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str = "training step") -> Figure:
    """Draw a small panel for each metric, with its key as the title and its last value beside it.

    Values that are not finite leave a gap.
    """
    series: dict[str, NDArray[np.float64]] = {}
    for name, listed in metrics.items():
        points = np.array(listed, dtype=np.float64).reshape(-1, 2)
        points[~np.isfinite(points[:, 1]), 1] = np.nan
        if np.isfinite(points[:, 1]).any():
            series[name] = points[np.argsort(points[:, 0], kind="stable")]  # a resumed run may write some late
    if not series:
        return blank("Nothing was recorded yet.")
    figure, panels = _panels(len(series), width=3.5, height=2.35)
    for axes, (name, points) in zip(panels, series.items(), strict=True):
        _curve(axes, short(name.replace("_", " "), 34), points)
        axes.set_xlabel(xlabel)
    return figure


@drawn
def score_bars(table: Sequence[Mapping[str, object]]) -> Figure:
    """Draw a panel for each score (a percentage) with a bar for each row; the first column names the rows."""
    names = [short(str(next(iter(row.values()), "")), 30) for row in table]
    keys = dict.fromkeys(key for row in table for key in list(row)[1:])
    scores = {key: np.array([_percent(row.get(key)) for row in table]) for key in keys}
    scores = {key: values for key, values in scores.items() if np.isfinite(values).any()}
    if not scores:
        return blank("There are no scores to show.")
    figure, panels = _panels(len(scores), width=3.4, height=0.95 + 0.3 * len(names))
    for axes, (key, values) in zip(panels, scores.items(), strict=True):
        _bars(axes, short(key, 34), values)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.label_outer(remove_inner_ticks=False)
        axes.tick_params(axis="x", labelbottom=True)
        axes.set_xlabel("percent (longer is better)")
    return figure


@dataclass(frozen=True)
class KCurve:
    """A score over the number of projections K, with a value per seed each, and systems without K to compare with."""

    points: Mapping[int, Sequence[float]]
    baselines: Mapping[str, Sequence[float]]
    ylabel: str


@drawn
def k_curves(panels: Sequence[KCurve]) -> Figure:
    """Draw panels side by side: a dot for each seed, a line through the means, a dashed line for each baseline."""
    shown = [panel for panel in panels if any(len(values) for values in panel.points.values())]
    if not shown:
        return blank("There are no results over K yet.")
    figure, grid = _panels(len(shown), width=4.6, height=2.6)
    for axes, panel in zip(grid, shown, strict=True):
        _k_panel(axes, panel)
    return figure


@dataclass(frozen=True)
class DotRow:
    """A line of a dot plot: its label, and a number for each kind of dot."""

    label: str
    values: Mapping[str, float]


@drawn
def dot_rows(rows: Sequence[DotRow], *, xlabel: str, accent: str) -> Figure:
    """Draw a line for each row with a dot for each kind, those of ``accent`` large and in color, with their number."""
    if not rows:
        return blank("There are no results yet.")
    figure = Figure(figsize=(6.4, 1.1 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.values))
    others = dict(zip([kind for kind in kinds if kind != accent], itertools.cycle("o^sDv"), strict=False))
    for y, row in enumerate(rows):
        if row.values:
            axes.plot([min(row.values.values()), max(row.values.values())], [y, y], color=QUIET, lw=1, zorder=1)
    for kind in kinds:
        points = [(row.values[kind], y) for y, row in enumerate(rows) if kind in row.values]
        own = {"marker": "o", "s": 46, "color": ACCENT, "zorder": 3}
        quiet = {"marker": others.get(kind), "s": 24, "facecolor": "white", "edgecolor": INK, "zorder": 2}
        axes.scatter(*zip(*points, strict=True), label=kind, **(own if kind == accent else quiet))
    for y, row in enumerate(rows):
        if accent in row.values:
            axes.annotate(f"{row.values[accent]:.1f}", (row.values[accent], y), (7, 0), textcoords="offset points",
                          va="center", color=ACCENT, weight="bold")  # fmt: skip
    axes.set_yticks(range(len(rows)), [short(row.label, 48) for row in rows])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.grid(axis="x")
    axes.set_xlabel(xlabel)
    figure.legend(loc="outside upper center", ncols=min(3, len(kinds)), frameon=False)
    return figure


def _curve(axes: Axes, title: str, points: NDArray[np.float64]) -> None:
    steps, values = points.T
    finite = values[np.isfinite(values)]
    if len(finite) > 80:
        axes.plot(steps, values, color=ACCENT, lw=0.8, alpha=0.3)
        values = _smooth(values)
    axes.plot(steps, values, color=ACCENT, lw=1.6, marker="o" if len(finite) < 3 else "", ms=4)
    axes.set_title(title, loc="left")
    axes.set_title(f"{finite[-1]:.3g}", loc="right", color=ACCENT)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.ticklabel_format(axis="y", useOffset=False)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over a centered window of a twentieth of the run; gaps stay and do not count."""
    window = np.ones(2 * (len(values) // 40) + 1)
    seen = np.isfinite(values)
    total = np.convolve(np.where(seen, values, 0), window, mode="same")
    count = np.convolve(seen, window, mode="same")
    return np.where(seen, total / np.maximum(count, 1), np.nan)


def _bars(axes: Axes, title: str, values: NDArray[np.float64]) -> None:
    best = np.nanmax(values)
    for i, value in enumerate(values):
        first, length = value == best, max(0.0, np.nan_to_num(value))
        axes.barh(i, length, height=0.66, color=ACCENT if first else QUIET)
        shown = " –" if math.isnan(value) else f" {value:.1f}"
        axes.text(length, i, shown, va="center", weight="bold" if first else "normal")
    axes.set_title(title, loc="left")
    axes.set_xlim(0, max(best * 1.2, 1))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.spines["left"].set_visible(False)


def _k_panel(axes: Axes, panel: KCurve) -> None:
    points = {k: values for k, values in sorted(panel.points.items()) if len(values)}
    axes.plot(list(points), [np.mean(values) for values in points.values()], color=ACCENT, lw=1.6)
    for k, values in points.items():
        axes.plot([k] * len(values), values, "o", color=ACCENT, ms=3.5, alpha=0.45, mew=0)
    means = {short(name, 60): float(np.mean(values)) for name, values in panel.baselines.items() if len(values)}
    for color, mean in zip(itertools.cycle((INK, FAINT)), means.values(), strict=False):
        axes.axhline(mean, color=color, lw=1, ls=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(points), [str(k) for k in points])
    axes.minorticks_off()
    axes.margins(y=0.12)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(short(panel.ylabel, 34), loc="left")
    axes.set_xlabel("K, the number of projections of LCR")
    _names_beside(axes, means)


def _names_beside(axes: Axes, heights: Mapping[str, float]) -> None:
    """Write names right of the panel, each at its line or as near above it as the name below leaves room."""
    low, high = axes.get_ylim()
    free = -math.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        lines = textwrap.wrap(name, 18)
        room = 0.085 * len(lines)
        place = max((height - low) / (high - low), free + room / 2)
        axes.annotate(
            "\n".join(lines), (1, place), (5, 0), "axes fraction", "offset points",
            va="center", size=7.5, color=INK, linespacing=1.1,
        )  # fmt: skip
        free = place + room / 2


def _percent(value: object) -> float:
    number = float(value) if isinstance(value, int | float | np.integer | np.floating) else math.nan
    return number if math.isfinite(number) else math.nan


def _panels(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    columns = 2 if count in (2, 4) else min(3, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]
