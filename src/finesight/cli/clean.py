"""``finesight clean``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.encoders import FrozenBackbone, FrozenResolution, FrozenWeights, RunOption, open_encoder
from finesight.cli.options import DATA_HELP, CacheDir, Json, PoolingOption, Quiet, Workers
from finesight.errors import FineSightError
from finesight.io.atomic import require_writable
from finesight.io.console import console, format_count, printable_line

if TYPE_CHECKING:
    from finesight.curation.findings import Cleaning
    from finesight.curation.imported import NewLabels

LISTED = 10  # suspects on the screen


def clean(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="A folder for report.html and clean.csv; with --apply a file.")
    ],
    run: RunOption = None,
    backbone: FrozenBackbone = None,
    weights: FrozenWeights = None,
    resolution: FrozenResolution = None,
    pooling: PoolingOption = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Probability of an error from which a label is listed.  [default: 0.1]"),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(help="A clean.csv whose column decision was filled in: write a corrected list to -o."),
    ] = None,
    new_labels: Annotated[
        bool, typer.Option("--new-labels", help="With --apply: labels that the data does not have are meant so.")
    ] = False,
    as_json: Json = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Find labels that are probably wrong, copies and outliers: a page with pictures and a table. Changes nothing."""
    if apply is not None:
        _apply(data, apply, out, new_labels, as_json)
        return
    if new_labels:
        raise FineSightError("--new-labels is about --apply, which is not given.")
    from finesight.curation.clean import clean as clean_data
    from finesight.curation.clean import prepare_folder
    from finesight.curation.suspects import THRESHOLD
    from finesight.data.sources import open_source

    source = open_source(data)
    prepare_folder(out, source)
    encoder = open_encoder(run, backbone, weights, resolution)
    found = clean_data(
        source,
        encoder,
        out=out,
        pooling=None if pooling is None else str(pooling),
        cache_dir=cache_dir,
        workers=workers,
        progress=not quiet,
        threshold=THRESHOLD if threshold is None else threshold,
    )
    if as_json:
        print(json.dumps(found.to_json() | {"report": str(out / "report.html"), "table": str(out / "clean.csv")}))
        return
    _print(found, out)


def _print(found: Cleaning, out: Path) -> None:
    print(printable_line(found.source.describe().splitlines()[0]))
    for note in found.notes:
        print(printable_line(note))
    if found.skipped:
        path, reason = found.skipped[0]
        console.print(f"{format_count(len(found.skipped), 'file')} left out, the first {path}: {reason}", markup=False)
    if found.wrong is not None:
        print(
            f"{format_count(len(found.suspects), 'suspected label')} ({found.expected_errors:,.0f} wrong ones expected)"
        )
        for one in found.suspects[:LISTED]:
            print(printable_line(f"  {one.score:4.0%}  {one.given} → {one.suggested}  {one.path}"))
        if len(found.suspects) > LISTED:
            print(f"  and {len(found.suspects) - LISTED:,} more")
    facts = found.to_json()
    groups = format_count(len(found.duplicates), "group")
    line = f"{format_count(facts['duplicates']['extra'], 'copy', 'copies')} in {groups}"
    if found.source.splits is not None:
        line += f", {format_count(facts['leaks'], 'group')} in both train and test"
    if found.wrong is not None:
        line += f", {format_count(facts['conflicts'], 'group')} with different labels"
    print(line)
    print(format_count(len(found.outliers), "outlier"))
    print(printable_line(f"Pictures: {out / 'report.html'}; table: {out / 'clean.csv'}. Nothing was changed."))


def _apply(data: str, table: Path, out: Path, new_labels: bool, as_json: bool) -> None:
    from finesight.curation.decisions import read_decisions
    from finesight.curation.imported import apply_labels
    from finesight.data.sources import open_source

    write_labels(out, apply_labels(open_source(data), read_decisions(table), new_labels=new_labels), as_json)


def write_labels(out: Path, labels: NewLabels, as_json: bool) -> None:
    """Write a list of images with their new labels, and say what it holds."""
    if out.is_dir():
        raise FineSightError(f"{out} is a folder: give -o a file, for example -o labels.csv.")
    require_writable(out)
    labels.write(out)
    for sentence in labels.sentences():
        console.print(sentence, markup=False)
    if as_json:
        print(json.dumps({"out": str(out), **labels.to_json()}))
        return
    changes = [f"{labels.changed:,} relabeled", f"{labels.dropped:,} dropped"]
    changes += [f"{labels.added:,} labeled that were not"] if labels.added else []
    changes += [f"{labels.unlabeled:,} without a label left out"] if labels.unlabeled else []
    print(f"{out}: {format_count(len(labels.rows), 'image')}; {', '.join(changes)}.")
