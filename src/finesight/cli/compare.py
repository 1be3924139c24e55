"""``finesight compare``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import CacheDir, Data, Exact, Json, LimitClasses, PoolingChoice, Quiet, Run, Workers
from finesight.io.console import format_count, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from finesight.evaluation.compare import Comparison
    from finesight.evaluation.metrics import RetrievalMetric

SHOWN = 12  # changed images in the table and in the sheet
SPLITS = {"official": "the test images of the official split", "given": "the test images of the given split"}


def compare(
    run_a: Run,
    run_b: Annotated[Path, typer.Argument(help="Another; or the same, with another pooling.")],
    data: Data,
    pooling_a: Annotated[
        PoolingChoice | None, typer.Option(help="How A makes a feature; by default as trained.")
    ] = None,
    pooling_b: Annotated[
        PoolingChoice | None, typer.Option(help="How B makes a feature; by default as trained.")
    ] = None,
    limit_classes: LimitClasses = None,
    resamples: Annotated[int, typer.Option(min=1, help="Of the bootstrap over queries.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for comparison.json, changed.csv and changed.png.")] = None,
    as_json: Json = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    exact: Exact = False,
    quiet: Quiet = False,
) -> None:
    """Is run B better than run A? Their difference with its 95 % interval, and the images that changed."""
    from finesight.evaluation import compare as comparing
    from finesight.explain.explainer import make_folder
    from finesight.features.encoder import Encoder
    from finesight.io.console import console

    a = Encoder.load(run_a, exact=exact)
    b = a if run_a.resolve() == run_b.resolve() else Encoder.load(run_b, exact=exact)
    if out is not None:
        make_folder(out)
    found = comparing.compare(
        a,
        b,
        data,
        pooling_a=pooling_a and str(pooling_a),
        pooling_b=pooling_b and str(pooling_b),
        resamples=resamples,
        seed=seed,
        limit_classes=limit_classes,
        cache_dir=cache_dir,
        workers=workers,
        progress=not quiet,
    )
    if out_of := [*(path for path, _ in found.a.cache.skipped), *found.dropped]:
        left = format_count(len(out_of), "file was", "files were")
        console.print(f"{left} left out for both, the first {out_of[0]}", markup=False)
    summary = found.summary()
    for key, run in (("a", run_a), ("b", run_b)):
        summary[key] = {"run": str(run)} | summary[key]
    if out is not None:
        _write(out, found, summary)
        console.print(f"Written to {out}: comparison.json, changed.csv, changed.png", markup=False)
    if as_json:
        print(json.dumps(summary))
        return
    _print(found, summary)


def _print(found: Comparison, summary: dict[str, Any]) -> None:
    from rich.markup import escape

    from finesight.evaluation.metrics import retrieval_metrics
    from finesight.io.console import print_table

    for key in ("a", "b"):
        it = summary[key]
        print(printable(f"{key.upper()}: {it['run']} ({it['method']}, {it['pooling']} pooling, {it['resolution']} px)"))
    where = SPLITS.get(found.split, "all images, as the data has no split")
    print(f"{len(found.paths):,} queries: {where}. Scores in percent; p and interval by a bootstrap over the queries.")
    print_table([score_row(metric, found) for metric in retrieval_metrics()])
    changed = found.changed
    if not len(changed):
        print("No difference: both find the same for every query.")
        return
    print(
        f"Nearest image: {len(found.became_right):,} queries became right, {len(found.became_wrong):,} became wrong. "
        f"AP changed for {len(found.ap_changes):,}. The most changed:"
    )
    x, y = (evaluation.queries.per_query["mAP"] for evaluation in (found.a, found.b))
    print_table(
        [
            {
                "query": escape(printable(found.paths[i])),
                "class": escape(printable(found.labels[i])),
                "nearest image": _change(found, i),
                "AP of A": 100 * float(x[i]),
                "AP of B": 100 * float(y[i]),
            }
            for i in changed[:SHOWN].tolist()
        ]
    )


def score_row(metric: RetrievalMetric, found: Comparison) -> dict[str, object]:
    """Return one line of the table."""
    a, b, gap = found.metrics[metric.key]
    least = 1 / found.resamples
    return {
        "": metric.head(),
        "A": a,
        "B": b,
        "B − A": f"{gap.mean:+.2f}",
        "95 % interval": f"{gap.low:+.2f} to {gap.high:+.2f}",
        "p": f"≤ {least:.2g}" if gap.p <= least < 1 else f"{gap.p:.3g}",
    }


def _change(found: Comparison, query: int) -> str:
    a, b = (bool(evaluation.queries.per_query["rank1"][query]) for evaluation in (found.a, found.b))
    if a == b:
        return "stays right" if a else "stays wrong"
    return "became right" if b else "became wrong"


# --- files ------------------------------------------------------------------------------------------------------------


def _write(folder: Path, found: Comparison, summary: dict[str, Any]) -> None:
    from finesight.evaluation.metrics import retrieval_metrics
    from finesight.io.atomic import write_atomic
    from finesight.io.table import write_table
    from finesight.plots.style import drawn

    names = [f"{metric.query_column}_{system}" for metric in retrieval_metrics() for system in "ab"]
    rows = []
    for query in found.changed.tolist():
        values = [
            (int if metric.binary else float)(evaluation.queries.per_query[metric.key][query])
            for metric in retrieval_metrics()
            for evaluation in (found.a, found.b)
        ]
        rows.append([str(found.paths[query]), str(found.labels[query]), _change(found, query), *values])
    write_atomic(folder / "comparison.json", json.dumps(summary, indent=2) + "\n")
    write_table(folder / "changed.csv", ["path", "label", "change", *names], rows)
    write_atomic(folder / "changed.png", drawn(_changed_sheet)(found))


def _changed_sheet(found: Comparison) -> Figure:
    """Draw the most changed queries, each with the image that A and that B finds nearest."""
    from finesight.evaluation.compare import nearest
    from finesight.plots.style import INK, blank, short
    from finesight.plots.tiles import below, framed, note, sheet, verdict

    shown = found.changed[:SHOWN]
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
