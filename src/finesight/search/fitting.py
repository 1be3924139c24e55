"""Which structure an index needs, and whether it finds enough: chosen by size, kept only if its recall was measured."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from finesight.search import structures
from finesight.search.item_store import Structure
from finesight.search.snapshot import Snapshot

EXACT_NUMBERS = 20_000 * 2048  # as many are multiplied in some 15 ms: up to there every row is looked at
GRAPH_BYTES = 2 * 2**30  # memory that graphs may take
RECALL = 0.95  # at 10, least
AIM = 0.97  # measured on a sample, so a little more is aimed at
SAMPLE = 300  # queries it is measured on
K = 10
MOST_TAIL = 0.1  # share of rows added after a structure was built, from which it is built anew


def fitted(
    now: Snapshot, space: str, folder: Path, exact_numbers: int, graph_bytes: int, least_recall: float
) -> Structure:
    """The structure there is if it will still do, else a new one that finds enough, else none: all is looked at."""
    (rows, dimension), there = now.vectors[space].shape, now.structures.get(space)
    exact = Structure(space, now.state.generation, rows, "exact", "", 0, 0, 1.0, 0, 0.0)
    if rows * dimension <= exact_numbers:
        return exact
    whole = there is not None and (not there.file or now.loaded.get(there.file) is not None)
    if there is not None and there.queries and whole and rows - there.rows <= MOST_TAIL * rows:
        return there
    fits = structures.graph_bytes(rows, dimension) * len(now.vectors) <= graph_bytes
    for kind in ("hnsw", "ivf-pq") if fits else ("ivf-pq",):  # a graph may fall apart where images come in tight groups
        made = _built(now, replace(exact, kind=kind), folder, least_recall)
        if made.file:
            break
    return made


def _built(now: Snapshot, plan: Structure, folder: Path, least_recall: float) -> Structure:
    """More effort in every search until the recall is reached."""
    start, vectors = time.monotonic(), now.vectors[plan.space]
    index = structures.build(plan.kind, vectors)
    queries = structures.sample_queries(vectors, now.live, SAMPLE)
    best = now.exact(queries, K, plan.space)[0]
    reached = replace(plan, kind="exact", queries=len(queries))  # tried: it need not be at the next small change
    file = f"{plan.space}-{plan.generation}-{plan.rows}.faiss"
    for pool, probes in structures.EFFORTS[plan.kind]:
        structures.set_probes(index, probes)
        tried = replace(plan, file=file, pool=pool, probes=probes, queries=len(queries))
        share = structures.least_recall(now.by_structure(queries, K, plan.space, tried, index)[0], best)
        if share >= least_recall:
            reached = replace(tried, recall=share, seconds=round(time.monotonic() - start, 1))
        if share >= max(AIM, least_recall):
            break
    if reached.file:
        structures.write(index, folder / file)
    return reached
