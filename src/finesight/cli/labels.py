"""``finesight labels``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
import os
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finesight.cli.clean import write_labels
from finesight.cli.encoders import FrozenBackbone, FrozenResolution, FrozenWeights, RunOption, open_encoder
from finesight.cli.options import CacheDir, Data, IndexUri, Json, PoolingOption, Quiet, RenamedOptions, Workers
from finesight.errors import FineSightError
from finesight.io.console import console, format_count, printable_line, without_password
from finesight.io.table import write_table

labels_app = typer.Typer(help="Labels of the search page, and exchange with FiftyOne, Label Studio and CVAT.")
Target = StrEnum("Target", {"fiftyone": "fiftyone", "label_studio": "label-studio", "cvat": "cvat"})
Origin = StrEnum(
    "Origin", {"fiftyone": "fiftyone", "label_studio": "label-studio", "cvat": "cvat", "datumaro": "datumaro"}
)


@labels_app.command("show", cls=RenamedOptions)
def show_labels(
    where: IndexUri,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A list of paths and labels for --data.")] = None,
    as_json: Json = False,
) -> None:
    """Show the labels that were given on the search page, or write them as a list for --data."""
    from collections import Counter

    from finesight.search.engines import open_index
    from finesight.search.notes import Notes

    with closing(open_index(where)) as index, closing(Notes(index.notes_file())) as notes:
        listed, known = index.list_items(), notes.all()
        labeled = [
            (os.path.join(index.meta.root, path), known[item].label)
            for item, path in zip(listed.ids.tolist(), listed.paths.tolist(), strict=True)
            if item in known and known[item].label
        ]
        total = len(listed.ids)
    counts = Counter(label for _, label in labeled)
    if out is not None:
        rows = [row for row in labeled if "\n" not in row[0]]  # a list has one path in a line
        if not rows:
            raise FineSightError("No image of the index has a label: give some on the page of `finesight serve`.")
        write_table(out, ("path", "label"), rows)
    if as_json:
        facts = {"index": without_password(where), "images": total, "labeled": len(labeled)}
        print(json.dumps({**facts, "labels": dict(counts)}))
        return
    print(f"{format_count(len(labeled), 'image')} of {total:,} with {format_count(len(counts), 'label')}.")
    for name, count in counts.most_common():
        print(f"{count:>8,}  {name}")
    if out is not None:
        print(f"Written to {out}.")


@labels_app.command("export", cls=RenamedOptions)
def export_labels(
    where: Annotated[str, typer.Argument(help="A folder of images, a list, a known dataset, or an index of them.")],
    to: Annotated[Target, typer.Option(help="The tool.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new folder for the files.")],
    run: RunOption = None,
    backbone: FrozenBackbone = None,
    weights: FrozenWeights = None,
    resolution: FrozenResolution = None,
    pooling: PoolingOption = None,
    features: Annotated[
        Path | None,
        typer.Option(help="Where features are kept, such as clean/features: they are not made again."),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="label-studio: what comes before an image's name in its address.")
    ] = None,
    as_json: Json = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write images with embedding, cluster, neighbors, copies and suspected label as files that a tool loads."""
    from finesight.curation.clean import clean, clean_index
    from finesight.curation.exchange import export, prepare_export
    from finesight.search.engines import index_exists

    prepare_export(out, str(to), prefix)
    if index_exists(where):
        if run is not None or backbone is not None or weights is not None:
            raise FineSightError(
                f"{without_password(where)} is an index and has its features: "
                "leave --run, --backbone and --weights away."
            )
        found = clean_index(where, pooling and str(pooling), workers=workers, progress=not quiet)
    else:
        encoder = open_encoder(run, backbone, weights, resolution)
        found = clean(
            where,
            encoder,
            store=features,
            pooling=pooling and str(pooling),
            cache_dir=cache_dir,
            workers=workers,
            progress=not quiet,
        )
    written = export(found, str(to), out, prefix)
    if written.left_out:
        left_out = format_count(written.left_out, "image")
        console.print(f"{left_out} left out: the name or the label is no text that other programs read.", markup=False)
    if as_json:
        facts = {"out": str(out), "to": str(to), "images": written.images, "left_out": written.left_out}
        print(json.dumps({**facts, "files": written.files, **{"findings": found.to_json()}}))
        return
    print(printable_line(f"{out}: {format_count(written.images, 'image')} for {to}: {', '.join(written.files)}."))
    print(written.advice)


@labels_app.command("import", cls=RenamedOptions)
def import_labels(
    file: Annotated[Path, typer.Argument(help="What the tool exported: a file, or for fiftyone a folder.")],
    origin: Annotated[Origin, typer.Option("--from", help="The tool, or the format.")],
    data: Data,
    out: Annotated[Path, typer.Option("-o", "--out", help="The list to write, for example labels.csv.")],
    field: Annotated[str, typer.Option(help="fiftyone: the field with the labels.")] = "ground_truth",
    new_labels: Annotated[
        bool, typer.Option("--new-labels", help="Labels that the data does not have are meant so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn labels that were made in a tool into a list that every command takes as --data."""
    from finesight.curation.exchange import read
    from finesight.curation.imported import apply_labels
    from finesight.data.sources import open_source

    labels = apply_labels(open_source(data), read(str(origin), file, field), new_labels=new_labels)
    write_labels(out, labels, as_json)
