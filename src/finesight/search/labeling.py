"""Write clusters as a table to fill in labels, and turn the filled table into a labeled list."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from finesight.errors import FineSightError
from finesight.search.base import Index
from finesight.search.clusters import UNCLUSTERED, Clustering

COLUMNS = ("cluster", "label", "distance", "path")
LEFT_OUT = "-"  # a label that means: not this one


@dataclass(frozen=True)
class Labels:
    """Labels that a person filled in, and how many images have none."""

    rows: list[tuple[str, str]]
    unlabeled: int
    unclear: tuple[str, ...]  # clusters with several labels, whose unlabeled images stay so
    gone: int  # no longer in the index


def write_table(file: Path, clustering: Clustering, paths: dict[int, str]) -> None:
    """Write a line for every image, by cluster, nearest to the center first; ``label`` is left empty."""
    with open_for_writing(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for cluster in [*range(len(clustering)), UNCLUSTERED]:
            name = "" if cluster == UNCLUSTERED else str(cluster)
            for position in clustering.positions(cluster).tolist():
                path = paths.get(int(clustering.ids[position]))
                if path is not None:
                    writer.writerow((name, "", f"{clustering.distances[position]:.4f}", path))


def read_labels(file: Path, index: Index) -> Labels:
    """Read the labels of a table: a line's own label, else that of its cluster if there is only one.

    Raises ``FineSightError`` if the file is no table of clusters or has no label of an image in the index.
    """
    lines = _read(file)
    by_cluster: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line["label"] and line["label"] != LEFT_OUT:
            by_cluster[line["cluster"]].add(line["label"])
    unclear = {name for name, labels in by_cluster.items() if name and len(labels) > 1}
    shared = {name: min(labels) for name, labels in by_cluster.items() if name and len(labels) == 1}
    listed = set(index.list_items().paths.tolist())
    rows, gone, unlabeled = [], 0, 0
    for line in lines:
        label = line["label"] or shared.get(line["cluster"], "")
        if line["path"] not in listed:
            gone += 1
        elif label in ("", LEFT_OUT) or "\n" in line["path"]:  # a list has one path in a line
            unlabeled += 1
        else:
            rows.append((os.path.join(index.meta.root, line["path"]), label))
    if not rows:
        advice = "write one into the column `label` of at least one line of a cluster."
        raise FineSightError(f"{file} has no label that fits the index: {advice}")
    return Labels(rows, unlabeled, tuple(sorted(unclear)), gone)


def write_list(file: Path, labels: Labels) -> None:
    """Write the columns ``path`` and ``label``, as --data reads them."""
    with open_for_writing(file) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("path", "label"))
        writer.writerows(labels.rows)


def open_for_writing(file: Path) -> io.TextIOWrapper:
    """Open a CSV file for writing; names that are not UTF-8 keep their bytes. Raises ``FineSightError`` if it fails."""
    try:
        return open(file, "w", newline="", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise FineSightError(f"{file} cannot be written: {error.strerror}.") from error


def _read(file: Path) -> list[dict[str, str]]:
    """Read a table as spreadsheets may have saved it: other separators, a byte-order mark, columns moved."""
    try:
        text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise FineSightError(f"{file} cannot be read: {error.strerror}.") from error
    head = text.split("\n", 1)[0]
    mark = max(",;\t", key=head.count)
    lines = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=mark))
    missing = [name for name in ("cluster", "label", "path") if not lines or name not in lines[0]]
    if missing:
        raise FineSightError(f"{file} is no table of clusters: it has no column {missing[0]!r}, or no line.")
    return [
        {"cluster": (line["cluster"] or "").strip(), "label": (line["label"] or "").strip(), "path": line["path"] or ""}
        for line in lines
    ]
