"""``finesight clusters`` and ``finesight duplicates``: parse, call, print. Heavy imports live inside the functions."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import IndexUri, Json, Quiet
from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.search.base import Index
    from finesight.search.clusters import Clusters
    from finesight.search.duplicates import Group

Method = StrEnum("Method", {"kmeans": "kmeans", "hdbscan": "hdbscan"})
By = Annotated[str | None, typer.Option(help="rationale, average, or a pooling of the index.  [default: its first]")]
FILL_IN = (
    "Write a name into the column label of clusters.csv, in one line of each cluster that deserves one; - leaves an "
    "image out. Then `finesight clusters INDEX --apply clusters.csv -o labeled.csv` makes a list for --data of it."
)
KINDS = {"bytes": "equal files", "picture": "the same picture", "features": "alike to the network"}


def clusters(
    where: IndexUri,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder for clusters.csv and the sheets; with --apply a file.")
    ] = None,
    method: Annotated[Method, typer.Option(help="hdbscan finds the number by itself.")] = Method.kmeans,
    count: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Of clusters (kmeans).  [default: by the number of images]")
    ] = None,
    by: By = None,
    seed: Annotated[int, typer.Option(min=0, help="Another one, other clusters.")] = 0,
    apply: Annotated[
        Path | None, typer.Option(help="A clusters.csv whose labels were filled in: make a list for --data of it.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Group the images of an index, with sheets to look at and a table to label them by."""
    from finesight.search.engines import open_index
    from finesight.search.searcher import Searcher

    with closing(open_index(where)) as index:
        if apply is not None:
            _apply(index, apply, out, as_json)
            return
        from finesight.search.clusters import cluster

        if out is not None:
            _make(out)  # before the work
        with _bar("clustering", not quiet) as tell:
            found = cluster(index, str(method), count, space=Searcher(index).space(by), seed=seed, tell=tell)
        known = index.list_items()
        paths = dict(zip(known.ids.tolist(), known.paths.tolist(), strict=True))
        if out is not None:
            _write_clusters(out, found, paths, index.meta.root)
    if as_json:
        print(json.dumps(_summary(where, found, paths)))
        return
    print(f"{len(found)} clusters of {len(found.ids):,} images by {found.space}", end="")
    print(f", {found.unclustered:,} in none." if found.unclustered else ".")
    for number, size in enumerate(found.sizes[:20]):
        first = [paths[item] for item in found.members(number)[:3].tolist() if item in paths]
        print(f"{number:4d}  {size:6,}  {_text(', '.join(first))}")
    if len(found) > 20:
        print(f"      and {len(found) - 20} smaller ones")


def _apply(index: Index, file: Path, out: Path | None, as_json: bool) -> None:
    from finesight.io.console import console
    from finesight.search.labeling import read_labels, write_list

    if out is None or out.is_dir():
        raise FineSightError("Where to? Give --apply a file with -o, for example -o labeled.csv.")
    labels = read_labels(file, index)
    write_list(out, labels)
    names = sorted({label for _, label in labels.rows})
    if labels.unclear:
        console.print(
            f"Clusters with several labels: {', '.join(labels.unclear)}. Their images without one stay so.",
            markup=False,
        )
    if labels.gone:
        console.print(f"{labels.gone:,} lines are of images that the index does not have.", markup=False)
    if as_json:
        print(
            json.dumps(
                {"out": str(out), "images": len(labels.rows), "labels": names}
                | {"unlabelled": labels.unlabeled, "unclear": list(labels.unclear), "gone": labels.gone}
            )
        )
        return
    from finesight.io.console import format_count

    found = f"{format_count(len(labels.rows), 'image')} of {format_count(len(names), 'label')}"
    print(f"{out}: {found}; {labels.unlabeled:,} without one left out.")


def duplicates(
    where: IndexUri,
    threshold: Annotated[float, typer.Option(min=0.01, max=1, help="Cosine from which two are the same.")] = 0.98,
    by: By = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A folder for duplicates.csv and the sheets.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find images of an index that are there twice: equal files, and those the network can hardly tell apart."""
    from finesight.search.duplicates import find_duplicates
    from finesight.search.engines import open_index
    from finesight.search.searcher import Searcher

    with closing(open_index(where)) as index:
        space = Searcher(index).space(by)
        if out is not None:
            _make(out)
        with _bar("comparing", not quiet) as tell:
            found = find_duplicates(index, threshold, space=space, tell=tell)
        if out is not None:
            _write_duplicates(out, found, index.meta.root)
        total = len(index)
    extra = sum(len(group.items) - 1 for group in found)
    if as_json:
        facts = {"index": where, "by": space, "threshold": threshold, "items": total, "extra": extra}
        print(json.dumps(facts | {"groups": [_group(group) for group in found]}))
        return
    from finesight.io.console import format_count

    print(f"{format_count(len(found), 'group')}: {extra:,} of {format_count(total, 'image')} could go.")
    for group in found[:20]:
        print(f"{KINDS[group.kind]} ({min(group.scores):.4f}):")
        for item in group.items[:5]:
            print(f"  {item.width} × {item.height}  {_text(item.path)}")
        if len(group.items) > 5:
            print(f"  and {len(group.items) - 5} more")
    if len(found) > 20:
        print(f"and {len(found) - 20:,} more groups")


def _write_clusters(out: Path, found: Clusters, paths: dict[int, str], root: str) -> None:
    from finesight.io.console import console
    from finesight.search.contact import SHOWN, Row, write_sheets
    from finesight.search.labeling import write_table

    write_table(out / "clusters.csv", found, paths)
    rows = []
    for number, size in [*enumerate(found.sizes), *([(-1, found.unclustered)] if found.unclustered else [])]:
        shown = [paths[item] for item in found.members(number)[:SHOWN].tolist() if item in paths]
        name = f"cluster {number}" if number >= 0 else "in no cluster"
        rows.append(Row(f"{name}: {size:,} images", shown))
    words = f"{len(found)} clusters of {len(found.ids):,} images, by {found.method}; nearest to the center first."
    files = write_sheets(out, "clusters", "Clusters", f"{words}\n\n{FILL_IN}", root, rows)
    console.print(f"Written to {out}: clusters.csv, {', '.join(file.name for file in files)}. {FILL_IN}", markup=False)


def _write_duplicates(out: Path, found: list[Group], root: str) -> None:
    from finesight.io.console import console
    from finesight.search.contact import Row, write_sheets
    from finesight.search.labeling import writing

    with writing(out / "duplicates.csv") as stream:
        writer = csv.writer(stream)
        writer.writerow(("group", "keep", "kind", "score", "width", "height", "bytes", "path"))
        for number, group in enumerate(found):
            for place, (item, score) in enumerate(zip(group.items, group.scores, strict=True)):
                keep = "" if place else "keep"
                size = (item.width, item.height, item.bytes)
                writer.writerow((number, keep, group.kind, f"{score:.6f}", *size, item.path))
    rows = [
        Row(f"{number}: {len(group.items):,} images, {KINDS[group.kind]}", [item.path for item in group.items])
        for number, group in enumerate(found)
    ]
    words = "The first of each group has the most pixels: keep that one."
    files = write_sheets(out, "duplicates", "Duplicates", words, root, rows)
    console.print(f"Written to {out}: duplicates.csv, {', '.join(file.name for file in files)}", markup=False)


def _summary(where: str, found: Clusters, paths: dict[int, str]) -> dict[str, object]:
    listed = [
        {
            "id": number,
            "size": size,
            "items": [
                {"id": str(item), "path": _text(paths[item])}
                for item in found.members(number).tolist()
                if item in paths
            ],
        }
        for number, size in enumerate(found.sizes)
    ]
    facts = {"index": where, "method": found.method, "by": found.space, "items": len(found.ids)}
    return {**facts, "clusters": listed, "unclustered": found.unclustered}


def _group(group: Group) -> dict[str, object]:
    items = [
        {"id": str(item.id), "path": _text(item.path), "score": round(score, 6)}
        for item, score in zip(group.items, group.scores, strict=True)
    ]
    return {"kind": group.kind, "items": items}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FineSightError(f"The folder {folder} cannot be made: {error.strerror}.") from error


@contextmanager
def _bar(what: str, show: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from finesight.io.console import console

    columns = (TextColumn(what), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not show) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _text(name: str) -> str:
    """File names that are not UTF-8 cannot be printed as they are."""
    return name.encode("utf-8", "replace").decode()
