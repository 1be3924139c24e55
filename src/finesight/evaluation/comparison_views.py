"""A comparison of two runs in words, in a table, and as a sheet of the images that changed."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from finesight.evaluation.compare import Comparison, nearest
from finesight.evaluation.metrics import retrieval_metrics
from finesight.plots.html import Section, html_fragment
from finesight.plots.style import INK, blank, drawn, short
from finesight.plots.tiles import below, framed, note, sheet, verdict

SHOWN = 12  # changed images in the table and in the sheet; half of them in a notebook
SPLITS = {"official": "the test images of the official split", "given": "the test images of the given split"}


def comparison_html(found: Comparison) -> str:
    """Return the comparison for a notebook."""
    systems = zip("AB", (found.a, found.b), strict=True)
    names = [f"{key}: {system.scores['setting']['method']}, {system.pooling} pooling." for key, system in systems]
    text = " ".join([*names, queries_words(found), changes_words(found)])
    pictures = [("the most changed queries", changed_sheet(found, SHOWN // 2))] if len(found.changed) else []
    return html_fragment("Is B better than A?", [Section("Scores", text, score_rows(found), pictures)])


def queries_words(found: Comparison) -> str:
    """Return how many queries were compared, of which images."""
    where = SPLITS.get(found.split, "all images, as the data has no split")
    return f"{len(found.paths):,} queries: {where}. Scores in percent; p and interval by a bootstrap over the queries."


def changes_words(found: Comparison) -> str:
    """Return how many queries changed."""
    if not len(found.changed):
        return "No difference: both find the same for every query."
    return (
        f"Nearest image: {len(found.became_right):,} queries became right, {len(found.became_wrong):,} became wrong. "
        f"AP changed for {len(found.ap_changes):,}."
    )


def score_rows(found: Comparison) -> list[dict[str, object]]:
    """Return a row for each metric of retrieval."""
    rows = []
    for metric in retrieval_metrics():
        a, b, gap = found.metrics[metric.key]
        least = 1 / found.resamples
        row: dict[str, object] = {
            "": metric.head(),
            "A": a,
            "B": b,
            "B − A": f"{gap.mean:+.2f}",
            "95 % interval": f"{gap.low:+.2f} to {gap.high:+.2f}",
            "p": f"≤ {least:.2g}" if gap.p <= least < 1 else f"{gap.p:.3g}",
        }
        rows.append(row)
    return rows


def describe_change(found: Comparison, query: int) -> str:
    """Return what became of the nearest image of a query."""
    a, b = (bool(evaluation.queries.per_query["rank1"][query]) for evaluation in (found.a, found.b))
    if a == b:
        return "stays right" if a else "stays wrong"
    return "became right" if b else "became wrong"


@drawn
def changed_sheet(found: Comparison, count: int = SHOWN) -> Figure:
    """Draw the most changed queries, each with the image that A and that B finds nearest."""
    shown = found.changed[:count]
    if not len(shown):
        return blank("No query changed: both find the same.")
    hits = [nearest(system, found.images[shown]) for system in (found.a, found.b)]
    cache = max(found.a.cache, found.b.cache, key=lambda cache: cache.side)  # the same images, index by index
    labels, classes = cache.source.labels, cache.source.classes
    assert labels is not None
    figure, grid = sheet(len(shown), ["query", "nearest by A", "nearest by B"], tile=1.5, room=0.36)
    for row, (query, tiles) in enumerate(zip(shown.tolist(), grid, strict=True)):
        image = int(found.images[query])
        framed(tiles[0], cache.image(image), INK, 1.2)
        below(tiles[0], short(Path(found.paths[query]).name, 23), found.labels[query], INK)
        for axes, system, first in zip(tiles[1:], (found.a, found.b), hits, strict=True):
            hit = int(first[row])
            color, mark = verdict(bool(labels[hit] == labels[image]))
            framed(axes, cache.image(hit), color, 3)
            below(axes, f"{mark} AP {100 * system.queries.per_query['mAP'][query]:.1f}", classes[labels[hit]], color)
    note(figure, 0.08, "✓ green: class of the query      ✗ red: another class")
    return figure
