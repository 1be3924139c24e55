"""The figures of the ablations: lines over what is varied, bars, curves over the epochs, and a sheet of projections."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.sources import ImageSource
from finesight.evaluation.evaluate import split_indices
from finesight.features.encoder import Encoder, pixels, projection_responses
from finesight.features.extract import BATCH
from finesight.io.console import format_count
from finesight.paper.ablations import KEEP_ALL
from finesight.plots.style import ACCENT, FAINT, INK, QUIET, blank, drawn, short
from finesight.plots.tiles import Picture, blend
from finesight.report.run_report import PICTURES
from finesight.training.config import RuntimeConfig

if TYPE_CHECKING:
    from finesight.paper.ablation import AblationExperiment
    from finesight.paper.store import Results

LABELS = {
    "rank1": "rank-1 (%)",
    "mAP": "mAP (%)",
    "mask_entropy": "mask entropy (1: uniform)",
    "kl": "KL to GradCAM (nats)",
    "val_rank1": "held-out rank-1 (%)",
    "val_mAP": "held-out mAP (%)",
}
SCORED, UNSCORED = ("rank1", "mAP"), ("mask_entropy", "kl")
CURVES, UNSCORED_CURVES = ("val_rank1", "val_mAP"), ("kl", "mask_entropy")
LOOKS = (
    (ACCENT, "-", "o"),
    (INK, (0, (5, 2)), "s"),
    ("#c2571a", (0, (1.5, 1.5)), "^"),
    ("#2e7d4f", (0, (5, 2, 1.5, 2)), "D"),
)
ENDS = 3  # projections of highest and of lowest variance that are shown
SHEET_NOTE = "dark: weakest answer, bright: strongest (each column on its own scale)"

Points = Mapping[float, Sequence[float]]  # place -> a value a seed


@dataclass(frozen=True)
class Panel:
    """One quantity: lines through the means over seeds, and levels that hold at every place."""

    label: str
    lines: Mapping[str, Points]
    levels: Mapping[str, Sequence[float]]


# --- from results to figures ------------------------------------------------------------------------------------------


def draw_ablation(experiment: AblationExperiment, results: Results, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the scores of an ablation; without labels, the metrics of its trainings."""
    ablation, metrics = experiment.ablation, SCORED if experiment.labeled else UNSCORED
    title, seeds = f"{ablation.title}\n{describe_data(experiment)}", experiment.seeds
    note = f"mean and range over {len(seeds)} seeds" if len(seeds) > 1 else f"one seed ({seeds[0]})"
    if ablation.figure == "epochs":
        rationale = experiment.config(KEEP_ALL, seeds[0]).rationale
        assert rationale is not None
        mark = rationale.keep_from, f"{rationale.keep_count} of {rationale.projections} are kept"
        return draw_lines(title, "epoch", epoch_panels(experiment, results), note, mark=mark)
    if ablation.figure == "bars":
        values = {LABELS[metric]: _by(rows, "row", metric) for metric in metrics}
        return draw_bars(title, values, f"blue: LCR as it is by default; {note}")
    column, label = ablation.axis or ("", "")
    return draw_lines(title, label, [row_panel(rows, column, metric) for metric in metrics], note, log=ablation.log)


def describe_data(experiment: AblationExperiment) -> str:
    """Name the data, the network and how long it was trained."""
    source, config = experiment.source(), experiment.config(experiment.rows[0].training, experiment.seeds[0])
    name = "drawn look-alike birds" if source.kind == "lookalikes" else experiment.data.absolute().name
    known = 0 if source.labels is None else len(np.unique(source.labels[source.labels >= 0]))
    classes = "" if source.labels is None else f", {format_count(known, 'class', 'classes')}"
    epochs = format_count(config.epochs, "epoch")
    return f"{name}{classes}, {config.backbone.name} at {config.encoder_resolution} px, {epochs}"


def _by(rows: Sequence[Mapping[str, Any]], key: str, metric: str) -> dict[Any, list[float]]:
    """Return the values over seeds by what the rows have under ``key``, in the order of the rows."""
    values: dict[Any, list[float]] = {}
    for row in rows:
        values.setdefault(row[key], [])
        if row[metric] is not None:
            values[row[key]].append(row[metric])
    return values


def row_panel(rows: Sequence[Mapping[str, Any]], column: str, metric: str) -> Panel:
    """Return a metric over a column of the rows; a series that has no place on the axis is a level."""
    series = dict.fromkeys(row["series"] for row in rows)
    points = {name: _by([row for row in rows if row["series"] == name], column, metric) for name in series}
    levels = {name: own[None] for name, own in points.items() if None in own}
    return Panel(LABELS[metric], {name: own for name, own in points.items() if name not in levels}, levels)


def epoch_panels(experiment: AblationExperiment, results: Results) -> list[Panel]:
    """Return held-out scores over epochs, or metrics of the training where a run has no held-out scores."""
    used = {row.label: [results[row.training][seed]["epochs"] for seed in experiment.seeds] for row in experiment.rows}
    scored = all(CURVES[0] in epochs for seeds in used.values() for epochs in seeds)
    panels = []
    for metric in CURVES if scored else UNSCORED_CURVES:
        own: dict[str, dict[float, list[float]]] = {}
        for label, seeds in used.items():
            for epoch, value in (point for epochs in seeds for point in epochs.get(metric, ())):
                own.setdefault(label, {}).setdefault(epoch, []).append(value)
        panels.append(Panel(LABELS[metric], own, {}))
    return panels


# --- charts -----------------------------------------------------------------------------------------------------------


def draw_lines(
    title: str,
    xlabel: str,
    panels: Sequence[Panel],
    note: str,
    *,
    log: int | None = None,
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Draw panels side by side; a band or a thin bar is the range over seeds, ``mark`` a labeled place of the axis."""
    panels = [panel for panel in panels if panel.lines]
    if not panels:
        return blank("There is nothing to draw yet.")
    figure, grid = _titled(title, len(panels), height=3.4)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, banded=log is None)
        if log is not None:
            _log_axis(axes, panel, log)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        if mark is not None:
            axes.axvline(mark[0], color=FAINT, lw=1, ls=(0, (2, 2)))
            axes.annotate(mark[1], (mark[0], 1), (3, -2), ("data", "axes fraction"), "offset points", va="top", size=7)
        axes.set(xlabel=xlabel, ylabel=panel.label)
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False, title=note)
    return figure


def _draw_panel(axes: Axes, panel: Panel, *, banded: bool) -> None:
    looks = dict(zip([*panel.lines, *panel.levels], LOOKS, strict=False))
    for name, points in panel.lines.items():
        color, style, marker = looks.get(name, LOOKS[-1])
        shown = {place: values for place, values in sorted(points.items()) if len(values)}
        places, means = list(shown), [float(np.mean(values)) for values in shown.values()]
        axes.plot(places, means, color=color, ls=style, marker=marker, ms=4, lw=1.6, label=name)
        low, high = (np.array([pick(values) for values in shown.values()]) for pick in (min, max))
        if banded:
            axes.fill_between(places, low, high, color=color, alpha=0.1, lw=0)
        else:
            axes.errorbar(places, means, (means - low, high - means), color=color, fmt="none", lw=1, capsize=2)
    for name, values in panel.levels.items():
        color, style, _ = looks.get(name, LOOKS[-1])
        axes.axhline(float(np.mean(values)), color=color, ls=style, lw=1.2, label=name)
        edge = 1 - 0.012 * (1 + list(panel.levels).index(name))
        axes.plot([edge, edge], [min(values), max(values)], color=color, lw=2, transform=axes.get_yaxis_transform())
    axes.grid(axis="y")
    axes.margins(y=0.12)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.ticklabel_format(axis="y", useOffset=False)


def _log_axis(axes: Axes, panel: Panel, base: int) -> None:
    places = sorted({place for points in panel.lines.values() for place in points})
    axes.set_xscale("log", base=base)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()


def draw_bars(title: str, values: Mapping[str, Mapping[str, Sequence[float]]], note: str) -> Figure:
    """Draw a panel for each quantity and a bar for each row, the first in color; a thin line is the range."""
    names = list(next(iter(values.values()), {}))
    if not names:
        return blank("There is nothing to draw yet.")
    figure, grid = _titled(title, len(values), height=1.5 + 0.3 * len(names))
    for axes, (label, found) in zip(grid, values.items(), strict=True):
        for i, own in enumerate(found.values()):
            _bar(axes, i, own, ".1f" if label.endswith("(%)") else ".3g")
        axes.set_yticks(range(len(names)), [short(name, 40) for name in names])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 * max([1e-6, *(max(own) for own in found.values() if len(own))]))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(label)
        axes.spines["left"].set_visible(False)
        axes.label_outer(remove_inner_ticks=False)
    figure.supxlabel(note, x=0.99, ha="right", size=7.5, color=FAINT)
    return figure


def _bar(axes: Axes, place: int, values: Sequence[float], form: str) -> None:
    if not len(values):
        axes.text(0, place, " –", va="center")
        return
    mean = float(np.mean(values))
    axes.barh(place, mean, height=0.66, color=QUIET if place else ACCENT)
    if len(values) > 1:
        axes.plot([min(values), max(values)], [place, place], color=INK, lw=1)
    axes.text(max(values), place, f" {mean:{form}}", va="center", weight="normal" if place else "bold")


def _titled(title: str, panels: int, *, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.3 * panels, height), layout="constrained")
    head, _, rest = title.partition("\n")
    words = "\n".join([head, *textwrap.wrap(rest, 62 * panels)])
    figure.suptitle(words, x=0.01, ha="left", size=9.5, weight="bold")
    return figure, list(figure.subplots(1, panels, squeeze=False).flat)


# --- the projections --------------------------------------------------------------------------------------------------


def scored_images(
    encoder: Encoder, source: ImageSource, runtime: RuntimeConfig
) -> tuple[DecodedCache, NDArray[np.int64]]:
    """Return the test images as the encoder sees them, and their indices; without labels, all that may be tested on."""
    scale = encoder.config.framing.scale
    if source.labels is None:
        source = source.split("test")
    cache = open_cache(source, scale, cache_dir=runtime.cache_dir, workers=runtime.workers, progress=runtime.progress)
    return cache, np.arange(len(cache)) if source.labels is None else split_indices(cache.source)[1]


def projection_variances(encoder: Encoder, cache: DecodedCache, images: NDArray[np.int64]) -> list[float]:
    """Return the variance of each projection's response over the cells of an image, averaged over images. (K,)"""
    pieces = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    answers = (projection_responses(encoder, encoder.cached_views(cache, piece)) for piece in pieces)
    means = np.concatenate([answer.var(axis=(2, 3), dtype=np.float64) for answer in answers]).mean(axis=0)
    return [float(mean) for mean in means]


def projections_figure(
    title: str, encoder: Encoder, cache: DecodedCache, images: NDArray[np.int64], variances: Sequence[float]
) -> bytes:
    """Draw a few images under the projections of highest and of lowest variance."""
    few = images[np.linspace(0, len(images) - 1, min(PICTURES, len(images))).round().astype(int)]
    views = encoder.cached_views(cache, few)
    pictures = [pixels(encoder, view) for view in views]
    return drawn(draw_projections)(title, pictures, projection_responses(encoder, views), variances)


def draw_projections(
    title: str, pictures: Sequence[Picture], responses: NDArray[np.float32], variances: Sequence[float]
) -> Figure:
    """Draw images as rows, projections by falling variance as columns, one scale a column; responses (M, K, H, W)."""
    order = np.argsort(-np.asarray(variances), kind="stable")
    shown = dict.fromkeys([*order[:ENDS].tolist(), *order[ENDS:][-ENDS:].tolist()])
    figure = Figure(figsize=(1.35 * (1 + len(shown)), 1.3 + 1.35 * len(pictures)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=9.5, weight="bold")
    figure.get_layout_engine().set(h_pad=0.03, w_pad=0.03, hspace=0, wspace=0)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(len(pictures), 1 + len(shown), squeeze=False)
    grid[0, 0].set_title("image", size=7.5)
    for column, k in enumerate(shown, start=1):
        place = int(np.flatnonzero(order == k)[0]) + 1
        grid[0, column].set_title(f"no. {place} of {len(order)}\nprojection {k}\nvariance {variances[k]:.2g}", size=7.5)
        low, high = float(responses[:, k].min()), float(responses[:, k].max())
        for row, picture in enumerate(pictures):
            heat = (responses[row, k] - low) / max(high - low, np.finfo(np.float32).tiny)
            grid[row, column].imshow(blend(picture, heat))
    for row, picture in enumerate(pictures):
        grid[row, 0].imshow(picture)
    for axes in grid.flat:
        axes.set_axis_off()
    figure.supxlabel(SHEET_NOTE, x=0.01, ha="left", size=7.5, color=FAINT)
    return figure
