"""``finesight clusters`` and ``finesight duplicates``: parse, call, print. Heavy imports live inside the functions."""

from __future__ import annotations

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import By, IndexUri, Json, Quiet
from finesight.errors import FineSightError
from finesight.io.atomic import require_writable
from finesight.io.console import console, format_count, printable, without_password
from finesight.io.table import write_table

if TYPE_CHECKING:
    from finesight.search.base import Index
    from finesight.search.clusters import Clustering
    from finesight.search.duplicates import DuplicateItems

Method = StrEnum("Method", {"kmeans": "kmeans", "hdbscan": "hdbscan"})
FILL_IN = (
    "Write a name into the column label of clusters.csv, in one line of each cluster that deserves one; - leaves an "
    "image out. Then `finesight clusters INDEX --apply clusters.csv -o labeled.csv` makes a list for --data of it."
)
KINDS = {"bytes": "equal files", "picture": "the same picture", "features": "alike to the network"}
LISTED, LISTED_ITEMS = 20, 5  # groups on the screen, and images of each


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
    from finesight.io.progress import phase_bar
    from finesight.search.clusters import cluster
    from finesight.search.engines import open_index
    from finesight.search.searcher import Searcher

    with closing(open_index(where)) as index:
        if apply is not None:
            _apply(index, apply, out, as_json)
            return
        _make_folder(out, "clusters.csv")
        space = Searcher(index).space(by)
        with phase_bar({"": "clustering"}, not quiet) as bar:
            found = cluster(
                index, str(method), count, space=space, seed=seed, tell=lambda done, total: bar("", done, total)
            )
        listed = index.list_items()
        paths = dict(zip(listed.ids.tolist(), listed.paths.tolist(), strict=True))
        if out is not None:
            _write_clusters(out, found, paths, index.meta.root)
    members = [[item for item in found.members(number).tolist() if item in paths] for number in range(len(found))]
    if as_json:
        described = [
            {"id": number, "size": size, "items": [{"id": str(one), "path": printable(paths[one])} for one in items]}
            for number, (size, items) in enumerate(zip(found.sizes, members, strict=True))
        ]
        facts = {"index": without_password(where), "method": found.method, "by": found.space, "items": len(found.ids)}
        print(json.dumps({**facts, "clusters": described, "unclustered": found.unclustered}))
        return
    print(f"{format_count(len(found), 'cluster')} of {format_count(len(found.ids), 'image')} by {found.space}", end="")
    print(f", {found.unclustered:,} in none." if found.unclustered else ".")
    for number, size in enumerate(found.sizes[:LISTED]):
        print(f"{number:4d}  {size:6,}  {printable(', '.join(paths[item] for item in members[number][:3]))}")
    if len(found) > LISTED:
        print(f"      and {len(found) - LISTED} smaller ones")


def _apply(index: Index, file: Path, out: Path | None, as_json: bool) -> None:
    from finesight.search.labeling import read_labels, write_list

    if out is None or out.is_dir():
        raise FineSightError("Where to? Give --apply a file with -o, for example -o labeled.csv.")
    require_writable(out)
    labels = read_labels(file, index)
    write_list(out, labels)
    names = sorted({label for _, label in labels.rows})
    if labels.unclear:
        unclear = ", ".join(labels.unclear)
        console.print(f"Clusters with several labels: {unclear}. Their images without one stay so.", markup=False)
    if labels.gone:
        console.print(f"{labels.gone:,} lines are of images that the index does not have.", markup=False)
    if as_json:
        facts = {"out": str(out), "images": len(labels.rows), "labels": names, "unlabelled": labels.unlabeled}
        print(json.dumps({**facts, "unclear": list(labels.unclear), "gone": labels.gone}))
        return
    made = f"{format_count(len(labels.rows), 'image')} of {format_count(len(names), 'label')}"
    print(f"{out}: {made}; {labels.unlabeled:,} without one left out.")


def duplicates(
    where: IndexUri,
    threshold: Annotated[float, typer.Option(min=0.01, max=1, help="Cosine from which two are the same.")] = 0.98,
    by: By = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A folder for duplicates.csv and the sheets.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find images of an index that are there twice: equal files, and those the network can hardly tell apart."""
    from finesight.io.progress import phase_bar
    from finesight.search.duplicates import find_duplicates
    from finesight.search.engines import open_index
    from finesight.search.searcher import Searcher

    with closing(open_index(where)) as index:
        space = Searcher(index).space(by)
        _make_folder(out, "duplicates.csv")
        with phase_bar({"": "comparing"}, not quiet) as bar:
            groups = find_duplicates(index, threshold, space=space, tell=lambda done, total: bar("", done, total))
        if out is not None:
            _write_duplicates(out, groups, index.meta.root)
        total = len(index)
    extra = sum(len(group.items) - 1 for group in groups)
    if as_json:
        facts = {"index": without_password(where), "by": space, "threshold": threshold, "items": total, "extra": extra}
        print(json.dumps({**facts, "groups": [_describe_group(group) for group in groups]}))
        return
    print(f"{format_count(len(groups), 'group')}: {extra:,} of {format_count(total, 'image')} could go.")
    for group in groups[:LISTED]:
        print(f"{KINDS[group.kind]} ({min(group.scores):.4f}):")
        for item in group.items[:LISTED_ITEMS]:
            print(f"  {item.width} × {item.height}  {printable(item.path)}")
        if len(group.items) > LISTED_ITEMS:
            print(f"  and {len(group.items) - LISTED_ITEMS} more")
    if len(groups) > LISTED:
        print(f"and {len(groups) - LISTED:,} more groups")


def _write_clusters(out: Path, found: Clustering, paths: dict[int, str], root: str) -> None:
    from finesight.search.contact import SHOWN, SheetRow, write_sheets
    from finesight.search.labeling import write_clusters

    write_clusters(out / "clusters.csv", found, paths)
    rows = []
    for number, size in [*enumerate(found.sizes), *([(-1, found.unclustered)] if found.unclustered else [])]:
        shown = [paths[item] for item in found.members(number)[:SHOWN].tolist() if item in paths]
        name = f"cluster {number}" if number >= 0 else "in no cluster"
        rows.append(SheetRow(f"{name}: {format_count(size, 'image')}", shown))
    counts = f"{format_count(len(found), 'cluster')} of {format_count(len(found.ids), 'image')}"
    words = f"{counts}, by {found.method}; nearest to the center first."
    files = write_sheets(out, "clusters", "Clusters", f"{words}\n\n{FILL_IN}", root, rows)
    console.print(f"Written to {out}: clusters.csv, {', '.join(file.name for file in files)}. {FILL_IN}", markup=False)


def _write_duplicates(out: Path, groups: list[DuplicateItems], root: str) -> None:
    from finesight.search.contact import SheetRow, write_sheets

    lines = (
        (number, "" if n else "keep", group.kind, f"{score:.6f}", item.width, item.height, item.bytes, item.path)
        for number, group in enumerate(groups)
        for n, (item, score) in enumerate(zip(group.items, group.scores, strict=True))
    )
    header = ("group", "keep", "kind", "score", "width", "height", "bytes", "path")
    write_table(out / "duplicates.csv", header, lines)
    rows = [
        SheetRow(f"{number}: {len(group.items):,} images, {KINDS[group.kind]}", [item.path for item in group.items])
        for number, group in enumerate(groups)
    ]
    words = "The first of each group has the most pixels: keep that one."
    files = write_sheets(out, "duplicates", "Duplicates", words, root, rows)
    console.print(f"Written to {out}: duplicates.csv, {', '.join(file.name for file in files)}", markup=False)


def _describe_group(group: DuplicateItems) -> dict[str, object]:
    items = [
        {"id": str(item.id), "path": printable(item.path), "score": round(score, 6)}
        for item, score in zip(group.items, group.scores, strict=True)
    ]
    return {"kind": group.kind, "items": items}


def _make_folder(folder: Path | None, table: str) -> None:
    """Make the folder for a table and see that it can be written, before the work is done."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FineSightError(f"The folder {folder} cannot be made: {error.strerror}.") from error
        require_writable(folder / table)
