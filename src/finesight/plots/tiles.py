"""Tiles in a grid, their words and heat maps: what sheets of pictures are made of."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from finesight.plots.style import FAINT, INK, short

Picture = NDArray[np.uint8]  # (h, w, 3)
Floats = NDArray[np.floating[Any]]

RIGHT, WRONG, UNKNOWN = "#1b9e4b", "#d62728", "#8a8f98"
# Black over red to yellow, without the near-white end, which would not read as hot on a pale image.
HEAT = ListedColormap(matplotlib.colormaps["inferno"](np.linspace(0, 0.92, 256)))


def blend(image: Picture, heat: Floats) -> Picture:
    """Return the image in gray with heat (H, W) in [0, 1] laid over it, the denser the hotter."""
    height, width = image.shape[:2]
    grown = Image.fromarray(heat.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    heat = np.clip(np.asarray(grown), 0, 1)  # (H, W) -> (h, w)
    gray = np.asarray(Image.fromarray(image).convert("L"))[..., None]
    weight = 0.45 + 0.3 * heat[..., None]
    mixed: Picture = np.rint((1 - weight) * gray + weight * HEAT(heat)[..., :3] * 255).astype(np.uint8)
    return mixed


def sheet(rows: int, heads: Sequence[str], *, tile: float, room: float = 0.07) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of square tiles under column heads, in inches; ``room`` is left for words under each tile."""
    edge, foot = 0.08, 0.36
    above = 0.16 + 0.14 * max(1 + head.count("\n") for head in heads)
    width, height = edge + len(heads) * (tile + edge), above + rows * (tile + room) + foot
    figure = Figure(figsize=(width, height))
    grid = []
    for row in range(rows):
        y = foot + room + (rows - 1 - row) * (tile + room)
        xs = [edge + column * (tile + edge) for column in range(len(heads))]
        grid.append([figure.add_axes((x / width, y / height, tile / width, tile / height)) for x in xs])
    for axes, head in zip(grid[0], heads, strict=True):
        lines = "\n".join(short(line, round(14 * tile)) for line in head.split("\n"))
        center = axes.get_position().x0 + tile / 2 / width
        figure.text(center, 1 - (above - 0.07) / height, lines, ha="center", size=8, weight="bold")
    for axes in (axes for line in grid for axes in line):
        axes.set_axis_off()
        axes.set_anchor("S")
    return figure, grid


def _thumbnail(axes: Axes, image: Picture) -> Picture:
    """Return the image with no more pixels than the tile shows, so that a report stays small."""
    picture = Image.fromarray(image)
    scale = axes.bbox.width / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS))


def show(axes: Axes, image: Picture) -> None:
    axes.imshow(_thumbnail(axes, image))


def overlay(axes: Axes, image: Picture, values: Floats, bounds: tuple[float, float] | None) -> None:
    """Show a map over the image; without ``bounds`` it has no contrast, and words say so."""
    if bounds is None:
        show(axes, image)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
        axes.text(0.5, 0.06, "same everywhere", ha="center", size=7, transform=axes.transAxes, bbox=box)
        return
    low, high = bounds
    heat = (np.where(np.isfinite(values), values, low) - low) / (high - low)
    axes.imshow(blend(_thumbnail(axes, image), heat))


def value_range(values: Floats) -> tuple[float, float] | None:
    """Return the lowest and the highest finite value; None when they differ by no more than rounding."""
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high - low > 1e-6 * max(abs(low), abs(high)) else None


def verdict(right: bool | None) -> tuple[str, str]:
    if right is None:
        return UNKNOWN, ""
    return (RIGHT, "✓") if right else (WRONG, "✗")


def framed(axes: Axes, image: Picture, color: str, width: float) -> None:
    show(axes, image)
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=color, linewidth=width)


def below(axes: Axes, mark: str, name: str, color: str) -> None:
    lines = [(mark, color, "bold"), (short(name, 23), INK, "normal")]
    for i, (text, tint, weight) in enumerate(line for line in lines if line[0]):
        offset = (0, -4 - 9 * i)
        axes.annotate(
            text, (0.5, 0), offset, "axes fraction", "offset points",
            ha="center", va="top", size=6.5, color=tint, weight=weight,
        )  # fmt: skip


def note(figure: Figure, inches: float, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(inches / width, 0.17 / height, text, color=FAINT, size=7.5, va="center")


def heat_key(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    bar = figure.add_axes((0.08 / width, 0.12 / height, 0.9 / width, 0.1 / height))
    bar.imshow(HEAT(np.linspace(0, 1, 128))[None], aspect="auto")
    bar.set_axis_off()
    note(figure, 1.08, text)
