"""The figures of an explanation, as PNG bytes: the paper's Figures 1 and A1, and why two images are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from finesight.explain.contributions import Doubles, Similarity
from finesight.explain.explainer import Explanation
from finesight.plots.style import INK, blank, drawn, short
from finesight.plots.tiles import Picture, below, heat_key, overlay, sheet, show, value_range

TITLES = {
    "gradcam": "GradCAM of its loss",
    "energy": "channel energy",
    "attention": "attention of\nits class token",
    "mask": "mask",
}


@drawn
def side_by_side(runs: Mapping[str, Sequence[Explanation]], words: Sequence[tuple[str, str]]) -> Figure:
    """Draw the paper's Figure 1: rows are images, and each run has a column for every map it has.

    ``runs`` holds one explanation an image, of the same images in the same order; ``words`` are their classes
    (empty where none is known) and names.
    """
    rows = len(next(iter(runs.values()), ()))
    if not rows:
        return blank("There are no images to show.")
    columns = [(name, of) for name, explanations in runs.items() for of in _maps_of(explanations)]
    heads = [TITLES[of] if len(runs) == 1 else f"{name}:\n{TITLES[of]}" for name, of in columns]
    figure, grid = sheet(rows, ["image", *heads], tile=1.6, room=0.36)
    pictures = next(iter(runs.values()))
    for i, tiles in enumerate(grid):
        picture = pictures[i].pixels[0]
        show(tiles[0], picture)
        below(tiles[0], short(words[i][0], 23), words[i][1], INK)
        for axes, (name, of) in zip(tiles[1:], columns, strict=True):
            if of == "gradcam" and runs[name][i].gradcam is None:
                continue  # the loss is one over the batch, and this image was alone
            heat = runs[name][i].heat(0, of)
            overlay(axes, picture, heat, value_range(heat))
    heat_key(figure, "dark: least, bright: most (each map on its own scale)")
    return figure


def _maps_of(explanations: Sequence[Explanation]) -> list[str]:
    """Return GradCAM, energy, attention and mask, as far as a run has them; without a rationale the mask is another."""
    has = {
        "gradcam": any(explanation.gradcam is not None for explanation in explanations),
        "energy": True,
        "attention": any(explanation.attention is not None for explanation in explanations),
        "mask": any(explanation.responses is not None for explanation in explanations),
    }
    return [name for name, there in has.items() if there]


@drawn
def high_and_low(
    explanations: Sequence[Explanation], variances: NDArray[np.float64], top: Sequence[int], lowest: Sequence[int]
) -> Figure:
    """Draw the paper's Figure A1, turned on its side: rows are images, columns the projections of highest and of lowest
    variance. Each map has its own scale, as there."""
    chosen = [(k, "high") for k in top] + [(k, "low") for k in lowest]
    if not explanations or not chosen:
        return blank("There are no projections to show.")
    heads = [f"{kind}: projection {k}\nvariance {variances[k]:.2g}" for k, kind in chosen]
    figure, grid = sheet(len(explanations), ["image", "mask", *heads], tile=1.35)
    for explanation, tiles in zip(explanations, grid, strict=True):
        picture = explanation.pixels[0]
        show(tiles[0], picture)
        columns: list[str | int] = ["mask", *(k for k, _ in chosen)]
        for axes, of in zip(tiles[1:], columns, strict=True):
            heat = explanation.heat(0, of)
            overlay(axes, picture, heat, value_range(heat))
    heat_key(figure, "dark: weakest, bright: strongest response (each map on its own scale)")
    return figure


def rank_projections(
    variances: NDArray[np.float64], kept: Sequence[int], top: int, lowest: int
) -> tuple[list[int], list[int]]:
    """Return the projections of highest variance, highest first, and of the rest those of lowest, lowest first."""
    order = sorted(kept, key=lambda k: (-float(variances[k]), k))
    rest = order[top:]
    return order[:top], rest[::-1][:lowest]


@drawn
def similarity_figure(
    similarity: Similarity, pictures: tuple[Picture, Picture], names: tuple[str, str], top: int = 4
) -> Figure:
    """Draw which cells and which projections made a score: the query above, the hit below.

    One color scale for all maps of an image: a projection that adds little looks faint.
    """
    shown = similarity.projections[:top]
    heads = [f"all cells\nscore {similarity.score:.3f}"]
    heads += [f"projection {part.k}\n{part.share:+.3f} ({_percent(part.share, similarity.score)})" for part in shown]
    figure, grid = sheet(2, ["image", *heads], tile=1.6, room=0.36)
    sides: list[tuple[str, Doubles, list[Doubles]]] = [
        ("query", similarity.query_map, [part.query_map for part in shown]),
        ("hit", similarity.hit_map, [part.hit_map for part in shown]),
    ]
    for (word, whole, parts), picture, name, tiles in zip(sides, pictures, names, grid, strict=True):
        show(tiles[0], picture)
        below(tiles[0], word, name, INK)
        bounds = value_range(np.stack([whole, *parts, np.zeros_like(whole)]))
        for axes, values in zip(tiles[1:], [whole, *parts], strict=True):
            overlay(axes, picture, values, bounds)
            below(axes, f"{values.sum():+.3f}", "", INK)
    heat_key(figure, "dark: adds nothing to the score, bright: adds most; the numbers are the sums of the maps")
    return figure


def _percent(share: float, score: float) -> str:
    return f"{100 * share / score:.0f} %" if score > 0 else "–"
