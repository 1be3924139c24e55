"""Explanations as HTML for notebooks: pictures with heat over them, and the numbers beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finesight.plots.html import html_table
from finesight.plots.inline import Tile, picture_rows
from finesight.plots.tiles import blend, value_range

if TYPE_CHECKING:
    from finesight.explain.contributions import Similarity
    from finesight.explain.explainer import Explanation

SHOWN = 6  # images
PROJECTIONS = 3  # of each image; 4 of a pair
TITLES = {"mask": "mask", "gradcam": "GradCAM of its loss", "attention": "class token", "energy": "channel energy"}
SCALE = "Dark: least, bright: most; each map has its own scale."


def explanation_html(explanation: Explanation) -> str:
    """Return a row for each image: the view, its maps, and the projections that vary most over it."""
    shown = range(min(len(explanation), SHOWN))
    rows = [[Tile(explanation.pixels[i], explanation.names[i]), *_maps(explanation, i)] for i in shown]
    words = "Where the network looks: what its features are pooled by, and what its loss cares about."
    more = f" The first {SHOWN} of {len(explanation):,} images are shown." if len(explanation) > SHOWN else ""
    return picture_rows(words, rows, SCALE + more)


def _maps(explanation: Explanation, i: int) -> list[Tile]:
    has_mask = explanation.responses is not None  # else the mask is the energy
    names = [of for of in TITLES if getattr(explanation, of) is not None and (of != "mask" or has_mask)]
    tiles = [Tile(explanation.overlay(i, of), TITLES[of]) for of in names]
    top = explanation.top(i, PROJECTIONS)
    return tiles + [Tile(explanation.overlay(i, k), f"projection {k}") for k in top]


def similarity_html(similarity: Similarity, top: int = PROJECTIONS + 1) -> str:
    """Return what made a score: the query above, the hit below, the whole map and those of the largest projections."""
    parts = similarity.projections[:top]
    words = f"Score {similarity.score:.3f} by {similarity.by}: the places sum to it exactly."
    table = [{"projection": part.k, "share": part.share, "matched": part.matched} for part in parts]
    rows = []
    if similarity.views is not None:
        whole = (similarity.query_map, similarity.hit_map)
        for side, (view, values) in enumerate(zip(similarity.views, whole, strict=True)):
            maps = [(part.query_map, part.hit_map)[side] for part in parts]
            heads = [f"projection {part.k}: {part.share:+.3f}" for part in parts]
            bounds = value_range(np.stack([values, *maps, np.zeros_like(values)]))
            tiles = [Tile(view.pixels, ("query", "hit")[side], similarity.names[side])]
            for title, heat in zip(["all places", *heads], [values, *maps], strict=True):
                tiles.append(Tile(_heated(view.pixels, heat, bounds), title))
            rows.append(tiles)
    note = "Dark: adds nothing to the score, bright: adds most; one scale for all maps of an image."
    return picture_rows(words, rows, note) + (html_table(table) if table else "")


def _heated(
    pixels: NDArray[np.uint8], heat: NDArray[np.float64], bounds: tuple[float, float] | None
) -> NDArray[np.uint8]:
    return pixels if bounds is None else blend(pixels, (heat - bounds[0]) / (bounds[1] - bounds[0]))
