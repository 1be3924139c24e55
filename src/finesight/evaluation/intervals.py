"""The scores' 95 % intervals: how much they owe to the choice of test images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.evaluation.bootstrap import intervals
from finesight.evaluation.linear import Outcome
from finesight.evaluation.retrieval import RetrievalScores


def score_intervals(
    queries: RetrievalScores,
    labels: NDArray[np.int64],
    outcomes: Mapping[str, Outcome],
    votes: Mapping[int, NDArray[np.bool_]],
) -> dict[str, Any]:
    """Low and high of every score in percent, under the names the scores have; ``labels`` are those of the queries.

    ``by_class`` has those of retrieval again, with whole classes drawn: see docs/protocols.md for which to believe.
    """
    asked = {"rank1": queries.hit1, "rank5": queries.hit5, "mAP": queries.ap}
    found: dict[str, Any] = {"level": 95, "retrieval": _columns(asked)}
    tested = {f"linear {percent} top1": outcome.hit1 for percent, outcome in outcomes.items()}
    tested |= {f"linear {percent} top5": outcome.hit5 for percent, outcome in outcomes.items()}
    tested |= {f"knn {k} top1": hit for k, hit in votes.items()}
    for name, pair in (_columns(tested) if tested else {}).items():
        kind, which, score = name.split()
        found.setdefault(kind, {}).setdefault(which, {})[score] = pair
    return found | {"by_class": {"retrieval": _columns(asked, labels)}}


def _columns(values: Mapping[str, NDArray[Any]], clusters: NDArray[np.int64] | None = None) -> dict[str, list[float]]:
    columns = np.stack([column.astype(np.float64) for column in values.values()], axis=1)
    ends = intervals(columns, clusters=clusters)
    return {name: pair.tolist() for name, pair in zip(values, ends, strict=True)}
