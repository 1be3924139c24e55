"""Write clusters as a table to fill in labels, and turn the filled table into a labeled list."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.table import read_table, write_table
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


def write_clusters(file: Path, clustering: Clustering, paths: dict[int, str]) -> None:
    """Write a line for every image, by cluster, nearest to the center first; ``label`` is left empty."""
    rows = (
        ("" if cluster == UNCLUSTERED else str(cluster), "", f"{clustering.distances[position]:.4f}", path)
        for cluster in [*range(len(clustering)), UNCLUSTERED]
        for position in clustering.positions(cluster).tolist()
        if (path := paths.get(int(clustering.ids[position]))) is not None
    )
    write_table(file, COLUMNS, rows)


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
    write_table(file, ("path", "label"), labels.rows)


def _read(file: Path) -> list[dict[str, str]]:
    """Read a table as spreadsheets may have saved it: other separators, a byte-order mark, columns moved."""
    try:
        lines = read_table(file)
    except OSError as error:
        raise FineSightError(f"{file} cannot be read: {error.strerror}.") from error
    except csv.Error as error:
        raise FineSightError(f"{file} is no table of clusters: {error}.") from error
    missing = [name for name in ("cluster", "label", "path") if not lines or name not in lines[0]]
    if missing:
        raise FineSightError(f"{file} is no table of clusters: it has no column {missing[0]!r}, or no line.")
    return [
        {"cluster": line["cluster"].strip(), "label": line["label"].strip(), "path": line["path"]} for line in lines
    ]
