"""Sheets of tiles, as PNG bytes: what was found for an image, and where a network looks.

They are read by people who know birds or cars, not networks: every sheet carries its own words (heads, a one-line
key) and colour is never the only sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from finesight.report.style import FAINT, INK, blank, drawn, short

Picture = NDArray[np.uint8]  # (h, w, 3)
Floats = NDArray[np.floating[Any]]

RIGHT, WRONG, UNKNOWN = "#1b9e4b", "#d62728", "#8a8f98"
# Black over red to yellow, without the near-white end, which would not read as hot on a pale image.
HEAT = ListedColormap(matplotlib.colormaps["inferno"](np.linspace(0, 0.92, 256)))


@dataclass(frozen=True)
class RetrievalRow:
    """One query and what was found for it, nearest first; the optional lists may be empty or run short."""

    query: Picture
    neighbours: Sequence[Picture]
    right: Sequence[bool | None] = ()  # None, or no entry: the class is not known
    name: str = ""
    names: Sequence[str] = ()
    scores: Sequence[float] = ()


@drawn
def retrieval_rows(rows: Sequence[RetrievalRow]) -> Figure:
    """Each row: the query, then what was found, framed and marked as right or wrong where labels exist."""
    if not rows:
        return blank("There are no searches to show.")
    matches = range(1, 1 + max(len(row.neighbours) for row in rows))
    heads = ["query", *(f"match {i}" for i in matches)]
    figure, grid = _sheet(len(rows), heads, tile=1.18, below=0.36)
    for row, tiles in zip(rows, grid, strict=True):
        _framed(tiles[0], row.query, INK, 1.2)
        _below(tiles[0], "", row.name, INK)
        for i, (axes, image) in enumerate(zip(tiles[1:], row.neighbours, strict=False)):
            colour, mark = _verdict(row.right[i] if i < len(row.right) else None)
            _framed(axes, image, colour, 3)
            score = f"{row.scores[i]:.2f}" if i < len(row.scores) else ""
            _below(axes, f"{mark} {score}".strip(), row.names[i] if i < len(row.names) else "", colour)
    known = any(right is not None for row in rows for right in row.right)  # else every frame is grey
    notes = ["✓ green: same class as the query", "✗ red: another class", "grey: class not known"] if known else []
    notes += ["numbers: likeness to the query, 1 at most"] if any(len(row.scores) for row in rows) else []
    _note(figure, 0.08, "      ".join(notes))
    return figure


@drawn
def attention_overlays(images: Sequence[Picture], maps: Sequence[Sequence[Floats]], titles: Sequence[str]) -> Figure:
    """Rows are images; first the plain image, then ``maps[i][j]`` (H, W) over image i under ``titles[j]``.

    Each map is scaled to its own range: the question is *where* a network looks, not how strongly.
    """
    if not images:
        return blank("There are no images to show.")
    figure, grid = _sheet(len(images), ["image", *titles], tile=1.6)
    for image, overlays, tiles in zip(images, maps, grid, strict=True):
        _show(tiles[0], image)
        for axes, values in zip(tiles[1:], overlays, strict=True):
            _overlay(axes, image, values, _range(values))
    _heat_key(figure, "dark: least attention, bright: most (each map on its own scale)")
    return figure


@drawn
def projections(images: Sequence[Picture], responses: Floats, variances: Floats, top: int = 8) -> Figure:
    """Where each of the ``top`` most varying projections responds; ``responses`` is (M, K, H, W).

    One colour scale per column, so that a projection which is silent on an image also looks silent.
    """
    if not len(images) or not len(variances):
        return blank("There are no projections to show.")
    order = np.argsort(-np.nan_to_num(np.float64(variances), nan=-np.inf), kind="stable")[:top]
    heads = [f"projection {k}\nvariance {variances[k]:.2g}" for k in order]
    figure, grid = _sheet(len(images), ["image", *heads], tile=1.08)
    for image, values, tiles in zip(images, responses, grid, strict=True):
        _show(tiles[0], image)
        for axes, k in zip(tiles[1:], order, strict=True):
            _overlay(axes, image, values[k], _range(responses[:, k]))
    _heat_key(figure, "dark: weakest response, bright: strongest (each column on its own scale)")
    return figure


def blend(image: Picture, heat: Floats) -> Picture:
    """Lays heat (H, W) in [0, 1] over the image in grey: every colour seen is heat, the denser the hotter."""
    height, width = image.shape[:2]
    grown = Image.fromarray(heat.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    heat = np.clip(np.asarray(grown), 0, 1)  # (H, W) -> (h, w)
    grey = np.asarray(Image.fromarray(image).convert("L"))[..., None]
    weight = 0.45 + 0.3 * heat[..., None]
    mixed: Picture = np.rint((1 - weight) * grey + weight * HEAT(heat)[..., :3] * 255).astype(np.uint8)
    return mixed


def _sheet(rows: int, heads: Sequence[str], *, tile: float, below: float = 0.07) -> tuple[Figure, list[list[Axes]]]:
    """Square tiles under column heads, all in inches; ``below`` is the room for words under each tile."""
    edge, foot = 0.08, 0.36
    above = 0.16 + 0.14 * max(1 + head.count("\n") for head in heads)
    width, height = edge + len(heads) * (tile + edge), above + rows * (tile + below) + foot
    figure = Figure(figsize=(width, height))
    grid = []
    for row in range(rows):
        y = foot + below + (rows - 1 - row) * (tile + below)
        xs = [edge + column * (tile + edge) for column in range(len(heads))]
        grid.append([figure.add_axes((x / width, y / height, tile / width, tile / height)) for x in xs])
    for axes, head in zip(grid[0], heads, strict=True):
        lines = "\n".join(short(line, round(14 * tile)) for line in head.split("\n"))
        centre = axes.get_position().x0 + tile / 2 / width
        figure.text(centre, 1 - (above - 0.07) / height, lines, ha="center", size=8, weight="bold")
    for axes in (axes for line in grid for axes in line):
        axes.set_axis_off()
        axes.set_anchor("S")
    return figure, grid


def _thumbnail(axes: Axes, image: Picture) -> Picture:
    """No more pixels than the tile shows, so that a report stays small whatever the images' size."""
    picture = Image.fromarray(image)
    scale = axes.bbox.width / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS))


def _show(axes: Axes, image: Picture) -> None:
    axes.imshow(_thumbnail(axes, image))


def _overlay(axes: Axes, image: Picture, values: Floats, bounds: tuple[float, float] | None) -> None:
    """A map without contrast is said to be flat rather than stretched until its rounding noise shows."""
    if bounds is None:
        _show(axes, image)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
        axes.text(0.5, 0.06, "same everywhere", ha="center", size=7, transform=axes.transAxes, bbox=box)
        return
    low, high = bounds
    heat = (np.where(np.isfinite(values), values, low) - low) / (high - low)
    axes.imshow(blend(_thumbnail(axes, image), heat))


def _range(values: Floats) -> tuple[float, float] | None:
    """Lowest and highest finite value; None when they differ by no more than rounding."""
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high - low > 1e-6 * max(abs(low), abs(high)) else None


def _verdict(right: bool | None) -> tuple[str, str]:
    if right is None:
        return UNKNOWN, ""
    return (RIGHT, "✓") if right else (WRONG, "✗")


def _framed(axes: Axes, image: Picture, colour: str, width: float) -> None:
    _show(axes, image)
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=width)


def _below(axes: Axes, mark: str, name: str, colour: str) -> None:
    lines = [(mark, colour, "bold"), (short(name, 23), INK, "normal")]
    for i, (text, tint, weight) in enumerate(line for line in lines if line[0]):
        offset = (0, -4 - 9 * i)
        axes.annotate(
            text, (0.5, 0), offset, "axes fraction", "offset points",
            ha="center", va="top", size=6.5, color=tint, weight=weight,
        )  # fmt: skip


def _note(figure: Figure, inches: float, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(inches / width, 0.17 / height, text, color=FAINT, size=7.5, va="center")


def _heat_key(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    bar = figure.add_axes((0.08 / width, 0.12 / height, 0.9 / width, 0.1 / height))
    bar.imshow(HEAT(np.linspace(0, 1, 128))[None], aspect="auto")
    bar.set_axis_off()
    _note(figure, 1.08, text)
