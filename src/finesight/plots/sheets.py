"""Sheets of tiles, as PNG bytes: what was found for an image, and where a network looks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from finesight.plots.style import INK, blank, drawn
from finesight.plots.tiles import (
    Floats,
    Picture,
    below,
    framed,
    heat_key,
    note,
    overlay,
    sheet,
    show,
    value_range,
    verdict,
)


@dataclass(frozen=True)
class RetrievalRow:
    """One query and what was found for it, nearest first; the optional lists may be empty or run short."""

    query: Picture
    neighbors: Sequence[Picture]
    right: Sequence[bool | None] = ()  # None, or no entry: the class is not known
    name: str = ""
    names: Sequence[str] = ()
    scores: Sequence[float] = ()


@drawn
def retrieval_rows(rows: Sequence[RetrievalRow]) -> Figure:
    """Draw a row for each query: its image, then what was found, marked as right or wrong where labels exist."""
    if not rows:
        return blank("There are no searches to show.")
    matches = range(1, 1 + max(len(row.neighbors) for row in rows))
    heads = ["query", *(f"match {i}" for i in matches)]
    figure, grid = sheet(len(rows), heads, tile=1.18, room=0.36)
    for row, tiles in zip(rows, grid, strict=True):
        framed(tiles[0], row.query, INK, 1.2)
        below(tiles[0], "", row.name, INK)
        for i, (axes, image) in enumerate(zip(tiles[1:], row.neighbors, strict=False)):
            color, mark = verdict(row.right[i] if i < len(row.right) else None)
            framed(axes, image, color, 3)
            score = f"{row.scores[i]:.2f}" if i < len(row.scores) else ""
            below(axes, f"{mark} {score}".strip(), row.names[i] if i < len(row.names) else "", color)
    known = any(right is not None for row in rows for right in row.right)  # else every frame is gray
    notes = ["✓ green: same class as the query", "✗ red: another class", "gray: class not known"] if known else []
    notes += ["numbers: likeness to the query, 1 at most"] if any(len(row.scores) for row in rows) else []
    note(figure, 0.08, "      ".join(notes))
    return figure


@drawn
def attention_overlays(images: Sequence[Picture], maps: Sequence[Sequence[Floats]], titles: Sequence[str]) -> Figure:
    """Draw a row for each image: the image alone, then ``maps[i][j]`` (H, W) over image i under ``titles[j]``.

    Each map is scaled to its own range: the question is *where* a network looks, not how strongly.
    """
    if not images:
        return blank("There are no images to show.")
    figure, grid = sheet(len(images), ["image", *titles], tile=1.6)
    for image, overlays, tiles in zip(images, maps, grid, strict=True):
        show(tiles[0], image)
        for axes, values in zip(tiles[1:], overlays, strict=True):
            overlay(axes, image, values, value_range(values))
    heat_key(figure, "dark: least attention, bright: most (each map on its own scale)")
    return figure


@drawn
def projections(images: Sequence[Picture], responses: Floats, variances: Floats, top: int = 8) -> Figure:
    """Draw where each of the ``top`` most varying projections responds; ``responses`` is (M, K, H, W).

    A column has one color scale, so that a projection which is silent on an image also looks silent.
    """
    if not len(images) or not len(variances):
        return blank("There are no projections to show.")
    order = np.argsort(-np.nan_to_num(np.float64(variances), nan=-np.inf), kind="stable")[:top]
    heads = [f"projection {k}\nvariance {variances[k]:.2g}" for k in order]
    figure, grid = sheet(len(images), ["image", *heads], tile=1.08)
    for image, values, tiles in zip(images, responses, grid, strict=True):
        show(tiles[0], image)
        for axes, k in zip(tiles[1:], order, strict=True):
            overlay(axes, image, values[k], value_range(responses[:, k]))
    heat_key(figure, "dark: weakest response, bright: strongest (each column on its own scale)")
    return figure
