"""Scores of features with labels, wherever the features come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource
from finesight.evaluation.bootstrap import score_intervals
from finesight.evaluation.knn import knn_places
from finesight.evaluation.linear import ProbeResult
from finesight.evaluation.metrics import METRICS, Values, classifier_values
from finesight.evaluation.per_class import Row, class_rows, query_labels, super_rows
from finesight.evaluation.protocols import Protocol
from finesight.evaluation.retrieval import RetrievalScores, retrieval
from finesight.features.wide import Features, concatenate


@dataclass(frozen=True)
class Scored:
    """The scores, what each query gave, and the scores by class, the worst first."""

    scores: dict[str, Any]
    queries: RetrievalScores
    classes: list[Row]


def score_features(
    source: ImageSource,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    features: Features,
    train_features: Features | None,
    protocol: Protocol,
    probes: Mapping[str, ProbeResult] | None = None,
    *,
    located: dict[str, Any] | None = None,
    search_all: bool = False,
) -> Scored:
    """Return retrieval, kNN where there are features of train, and the scores of probes that were fitted.

    ``train`` and ``test`` are indices into the source, in the order of the features. With ``search_all`` the train
    images are searched, too. ``located`` are scores of the attention, which take their place among the others.
    """
    assert source.labels is not None
    searched, gallery = features, test
    if search_all and train_features is not None:
        searched, gallery = concatenate(features, train_features), np.concatenate([test, train])
    labels, test_labels = source.labels[gallery], source.labels[test]
    queries = retrieval(searched, labels, ties=protocol.ties)
    scores: dict[str, Any] = {"retrieval": queries.summary()}
    classifiers: dict[str, dict[str, Mapping[str, Values]]] = {}
    if probes is not None:
        scores["linear"] = {percent: result.summary() for percent, result in probes.items()}
        classifiers["linear"] = {percent: result.per_image for percent, result in probes.items()}
    if train_features is not None and protocol.knn:
        places = knn_places(train_features, source.labels[train], features, test_labels, protocol.knn)
        classifiers["knn"] = {str(k): classifier_values("knn", place) for k, place in places.items()}
        scores["knn"] = {
            k: {key: METRICS[f"knn.{key}"].score(values) for key, values in per_image.items()}
            for k, per_image in classifiers["knn"].items()
        }
    if located is not None:
        scores["localization"] = located
    if (supers := super_rows(source, searched, labels, queries, protocol.ties)) is not None:
        scores["super_categories"] = supers
    scores["ci"] = score_intervals(queries.per_query, query_labels(labels), classifiers)
    return Scored(scores, queries, class_rows(source, labels, queries, test_labels, classifiers))
