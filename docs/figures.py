"""Draw the three figures of docs/concepts/rationale.md of a finished run: ``python docs/figures.py RUN CUB_200_2011``.

The run is one of LCR, trained as the page says. Images are test images of CUB-200-2011, evenly spaced over the classes;
those whose bird is at least a twentieth and at most a third of the picture are taken, so that there is background.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from finesight.data.sources import ImageSource, open_source
from finesight.evaluation.retrieval import neighbors
from finesight.explain.explainer import Explainer, Explanation
from finesight.plots.style import INK, drawn, short
from finesight.plots.tiles import RIGHT, WRONG, below, framed, heat_key, overlay, sheet, show, value_range

OUT = Path(__file__).parent / "img"
LARGEST = 150_000  # bytes


def main() -> None:
    """Draw and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--gallery", type=int, default=300, help="test images that figure 3 searches")
    given = parser.parse_args()
    explainer, source = Explainer.load(given.run), open_source(given.data)
    chosen = birds_with_background(source, 5)
    explanation = explainer([source.file(i) for i in chosen])
    write("rationale-1-loss.webp", what_the_loss_likes(explanation, range(4)))
    write("rationale-2-common.webp", what_is_common(explanation))
    write("rationale-3-pool.webp", how_the_mask_pools(explainer, source, chosen[:3], given.gallery))


def birds_with_background(source: ImageSource, count: int) -> list[int]:
    """Return test images, evenly spaced, whose box covers a twentieth to a third of the picture."""
    assert source.splits is not None
    assert source.boxes is not None
    found = []
    for i in np.flatnonzero(source.splits == "test").tolist():
        with Image.open(source.file(i)) as image:
            area = image.width * image.height
        share = float(source.boxes[i][2] * source.boxes[i][3]) / area
        if 1 / 20 <= share <= 1 / 3:
            found.append(i)
    return [found[k] for k in np.linspace(0, len(found) - 1, count + 2).round().astype(int)[1:-1]]


@drawn
def what_the_loss_likes(explanation: Explanation, shown: range) -> Figure:
    """Draw images with the GradCAM of the contrastive loss and the mask."""
    figure, grid = sheet(2, [f"image {i + 1}" for i in shown], tile=1.5)
    for i in shown:
        show(grid[0][i], explanation.pixels[i])
        heat = explanation.heat(i, "gradcam")
        overlay(grid[1][i], explanation.pixels[i], heat, value_range(heat))
    heat_key(figure, "below: how much the contrastive loss of this image depends on each place")
    return figure


@drawn
def what_is_common(explanation: Explanation, top: int = 3) -> Figure:
    """Draw the same projections over several images, on one scale each, and the mask, their maximum."""
    assert explanation.winners is not None
    wins = np.bincount(explanation.winners.ravel())
    order = np.argsort(-wins, kind="stable")[:top]
    heads = ["image", *(f"filter {k}" for k in order), "mask: maximum\nover all filters"]
    figure, grid = sheet(4, heads, tile=1.3)
    for i, tiles in enumerate(grid):
        show(tiles[0], explanation.pixels[i])
        for axes, k in zip(tiles[1:], order.tolist(), strict=False):
            responses = np.stack([explanation.heat(j, k) for j in range(len(explanation))])
            overlay(axes, explanation.pixels[i], explanation.heat(i, k), value_range(responses))
        mask = explanation.heat(i, "mask")
        overlay(tiles[-1], explanation.pixels[i], mask, value_range(mask))
    heat_key(figure, "dark: weak, bright: strong answer; each filter has one scale for all images")
    return figure


@drawn
def how_the_mask_pools(explainer: Explainer, source: ImageSource, chosen: list[int], gallery: int) -> Figure:
    """Draw for each query its mask, and the two nearest images by the average and by the mask."""
    assert source.splits is not None
    assert source.labels is not None
    test = np.flatnonzero(source.splits == "test")
    classes = np.unique(source.labels[chosen])
    own = test[np.isin(source.labels[test], classes)]
    others = np.setdiff1d(test, own)
    rest = others[np.linspace(0, len(others) - 1, max(0, gallery - len(own))).round().astype(int)]
    images = np.unique(np.concatenate([own, rest]))
    encoder = explainer.encoder
    files = [source.file(int(i)) for i in images]
    poolings = ("average", encoder.config.pooling)
    made = [encoder.encode(encoder.prepare(files[k : k + 50]), poolings).features for k in range(0, len(files), 50)]
    features = {name: np.concatenate([part[name].numpy() for part in made]) for name in poolings}
    heads = ["query", "its mask", "nearest by\nthe average", "second", "nearest by\nthe mask", "second"]
    figure, grid = sheet(len(chosen), heads, tile=1.25, room=0.36)
    queries = np.searchsorted(images, chosen)
    for name, first in (("average", 2), (encoder.config.pooling, 4)):
        unit = features[name] / np.linalg.norm(features[name], axis=1, keepdims=True)
        found, scores = neighbors(unit.astype(np.float32), queries, 2)
        for row, query in enumerate(chosen):
            for place in range(2):
                hit = int(images[found[row, place]])
                right = source.labels[hit] == source.labels[query]
                axes = grid[row][first + place]
                framed(axes, explainer([source.file(hit)]).pixels[0], RIGHT if right else WRONG, 3)
                mark = f"{'✓' if right else '✗'} {scores[row, place]:.2f}"
                below(axes, mark, name_of(source, hit), RIGHT if right else WRONG)
    for row, query in enumerate(chosen):
        seen = explainer([source.file(query)])
        show(grid[row][0], seen.pixels[0])
        below(grid[row][0], "", name_of(source, query), INK)
        mask = seen.heat(0, "mask")
        overlay(grid[row][1], seen.pixels[0], mask, value_range(mask))
    heat_key(figure, "✓ same species, ✗ another species; numbers are scores")
    return figure


def name_of(source: ImageSource, i: int) -> str:
    """Return the species of an image."""
    assert source.labels is not None
    return short(source.classes[int(source.labels[i])].partition(".")[2].replace("_", " "), 20)


def write(name: str, png: bytes) -> None:
    """Write a figure as WebP, on white: it is legible on light and dark pages."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.save(OUT / name, "WEBP", quality=82, method=6)
    size = (OUT / name).stat().st_size
    assert size < LARGEST, f"{name} has {size:,} bytes"
    print(f"{name}: {image.width} × {image.height}, {size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
