"""Evaluation protocols that describe themselves: how test images are ranked and how the linear probe is trained.

A protocol is a dataclass whose fields are its settings, registered in its own file; docs/protocols.md compares those
there are. Modules of protocols import nothing heavy, so that ``finesight evaluate --help`` can list them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finesight.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finesight.data.cache import DecodedCache
    from finesight.data.sources import ImageSource
    from finesight.evaluation.fractions import Parts
    from finesight.evaluation.linear import ProbeResult
    from finesight.evaluation.retrieval import Ties
    from finesight.features.encoder import Encoder
    from finesight.features.wide import Features

PROTOCOLS: Registry[type[Protocol]] = Registry(
    "protocol", ("finesight.evaluation.protocols", "finesight.paper.protocols"), "finesight.protocols"
)
SPLITS = {
    "official": "official split",
    "given": "given split",
    "random": "no split given: a fixed random 70/30 of each class for the probe, retrieval among all images",
}


@dataclass(frozen=True, eq=False)
class ProbeTask:
    """What the linear probe is trained and scored on."""

    encoder: Encoder
    cache: DecodedCache
    pooling: str
    train: NDArray[np.int64]  # indices into the cache
    test: NDArray[np.int64]
    test_features: Features  # of the center views
    parts: Parts  # indices into ``train``
    train_features: Features | None = None  # of the center views, if the protocol needs them
    unit: bool = True  # whether features are brought to length 1
    progress: bool = True

    def labels(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self.cache.source.labels is not None
        return self.cache.source.labels[images]


@dataclass(frozen=True)
class Protocol(ABC):
    """How to score. Its fields are settings; subclasses may add their own."""

    name: ClassVar[str]
    ties: ClassVar[Ties] = "first"  # which of equally similar images ranks first
    by_class: ClassVar[bool] = False  # whether test images go through the network class by class

    knn: tuple[int, ...] = (1, 20)  # numbers of neighbors that vote, where features of train are there anyway
    labels: Path | None = None  # the label fractions to use; None: drawn
    save_labels: Path | None = None  # where to write those that are used
    seed: int = 0  # of the label fractions, the folds and the probes

    @property
    def needs_train_features(self) -> bool:
        """Whether center views of train are needed if the linear probe is asked for."""
        return True

    @abstractmethod
    def probe(self, task: ProbeTask) -> dict[str, ProbeResult]:
        """Train the linear probe; return the results by percent of the labels."""

    @abstractmethod
    def probe_facts(self, results: Mapping[str, ProbeResult]) -> dict[str, Any]:
        """Return what the ``setting`` of the scores says about the probe."""

    @classmethod
    @abstractmethod
    def probe_words(cls, setting: Mapping[str, Any]) -> str:
        """Return the sentence that says how the probe was trained, from the ``setting`` of the scores."""


def provenance(protocol: Protocol, source: ImageSource, results: Mapping[str, ProbeResult]) -> dict[str, Any]:
    """Return facts for the ``setting`` of the scores; ``results`` are those of the linear probe, if there was one."""
    from finesight.data.verification import describe_differences

    facts: dict[str, Any] = {
        "protocol": protocol.name,
        "dataset": source.kind,
        "incomplete": describe_differences(source),
        "seed": protocol.seed,
        "test_looks": 1,
    }
    if results:
        facts["labels"] = "drawn" if protocol.labels is None else protocol.labels.name
        facts |= protocol.probe_facts(results)
    return facts


def setting_words(scores: Mapping[str, Any]) -> str:
    """Return one line for under a table that says what the scores are scores of."""
    from finesight.data.layouts.layout import official_counts

    setting = scores["setting"]
    if "protocol" not in setting:  # written before there were two
        return ""
    complete = "complete" if official_counts(setting["dataset"]) else "not a published dataset"
    words = [
        f"Protocol {setting['protocol']}, {setting['dataset']} ({setting['incomplete'] or complete}), "
        f"{SPLITS[setting['split']]}, {setting['train_images']:,} train and {setting['test_images']:,} test images, "
        f"seed {setting['seed']}."
    ]
    if "linear" in scores:
        drawn = setting["labels"] == "drawn"
        words.append(f"Label fractions {'drawn' if drawn else 'of ' + setting['labels']}.")
        words.append(PROTOCOLS.find(setting["protocol"]).probe_words(setting))
    if (looks := setting["test_looks"]) == 1:
        words.append("Test was looked at once.")
    else:
        words.append(
            f"Test was looked at {looks} times, after every epoch; scores are the last, best_on_test the best of them."
        )
    if "ci" in scores:
        words.append("In brackets: 95 % intervals by a bootstrap over queries (over test images for the classifiers).")
    return " ".join(words)
