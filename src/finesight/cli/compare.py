"""``finesight compare``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import CacheDir, Data, Exact, Json, LimitClasses, PoolingChoice, Quiet, Run, Workers
from finesight.io.console import format_count, printable

if TYPE_CHECKING:
    from finesight.evaluation.compare import Comparison


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

    from finesight.evaluation.comparison_views import SHOWN, changes_words, describe_change, queries_words, score_rows
    from finesight.io.console import print_table

    for key in ("a", "b"):
        it = summary[key]
        print(printable(f"{key.upper()}: {it['run']} ({it['method']}, {it['pooling']} pooling, {it['resolution']} px)"))
    print(queries_words(found))
    print_table(score_rows(found))
    changed = found.changed
    if not len(changed):
        print(changes_words(found))
        return
    print(f"{changes_words(found)} The most changed:")
    x, y = (evaluation.queries.per_query["mAP"] for evaluation in (found.a, found.b))
    print_table(
        [
            {
                "query": escape(printable(found.paths[i])),
                "class": escape(printable(found.labels[i])),
                "nearest image": describe_change(found, i),
                "AP of A": 100 * float(x[i]),
                "AP of B": 100 * float(y[i]),
            }
            for i in changed[:SHOWN].tolist()
        ]
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _write(folder: Path, found: Comparison, summary: dict[str, Any]) -> None:
    from finesight.evaluation.comparison_views import changed_sheet, describe_change
    from finesight.evaluation.metrics import retrieval_metrics
    from finesight.io.atomic import write_atomic
    from finesight.io.table import write_table

    names = [f"{metric.query_column}_{system}" for metric in retrieval_metrics() for system in "ab"]
    rows = []
    for query in found.changed.tolist():
        values = [
            (int if metric.binary else float)(evaluation.queries.per_query[metric.key][query])
            for metric in retrieval_metrics()
            for evaluation in (found.a, found.b)
        ]
        rows.append([str(found.paths[query]), str(found.labels[query]), describe_change(found, query), *values])
    write_atomic(folder / "comparison.json", json.dumps(summary, indent=2) + "\n")
    write_table(folder / "changed.csv", ["path", "label", "change", *names], rows)
    write_atomic(folder / "changed.png", changed_sheet(found))
