"""What a score is a score of: protocol, split, how settings were chosen, how often test was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from finesight.data.layouts.layout import official_counts
from finesight.data.sources import ImageSource
from finesight.data.verification import describe_differences
from finesight.evaluation.knn import NEIGHBORS
from finesight.evaluation.linear import ProbeResult
from finesight.paper.released import EPOCHS, milestones

ProtocolName = Literal["finesight", "released"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
SPLITS = {
    "official": "official split",
    "given": "given split",
    "random": "no split given: a fixed random 70/30 of each class for the probe, retrieval among all images",
}


@dataclass(frozen=True)
class Protocol:
    """How to score; docs/protocols.md says what the two are."""

    name: ProtocolName = "finesight"
    knn: tuple[int, ...] = NEIGHBORS  # k of each vote, where features of train are there anyway
    labels: Path | None = None  # the label fractions to use; None: drawn
    save_labels: Path | None = None  # where to write those that are used
    probe_epochs: int = EPOCHS  # of the released probe
    state: Path | None = None  # the folder where the released probe keeps how far it is
    seed: int = 0  # of the label fractions, the folds and the probes

    @property
    def released(self) -> bool:
        return self.name == "released"


def provenance(protocol: Protocol, source: ImageSource, probes: Mapping[str, ProbeResult]) -> dict[str, Any]:
    """For the ``setting`` of the scores. ``probes`` are those of the linear probe, none where there was none."""
    facts: dict[str, Any] = {
        "protocol": protocol.name,
        "dataset": source.kind,
        "incomplete": describe_differences(source),
        "seed": protocol.seed,
        "test_looks": 1,
    }
    if probes:
        facts["labels"] = "drawn" if protocol.labels is None else protocol.labels.name
        if protocol.released:
            facts |= {"test_looks": protocol.probe_epochs, "rate_falls_after": list(milestones(protocol.probe_epochs))}
        else:
            facts["validation"] = {
                percent: {"images": result.validation_images, "folds": result.folds}
                for percent, result in probes.items()
            }
    return facts


def setting_words(scores: Mapping[str, Any]) -> str:
    """One line for under a table."""
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
        words += _probe_words(setting)
    words.append("Test was looked at once." if setting["test_looks"] == 1 else _looks(setting["test_looks"]))
    if "ci" in scores:
        words.append("In brackets: 95 % intervals by a bootstrap over queries (over test images for the classifiers).")
    return " ".join(words)


def _probe_words(setting: Mapping[str, Any]) -> list[str]:
    drawn = setting["labels"] == "drawn"
    words = [f"Label fractions {'drawn' if drawn else 'of ' + setting['labels']}."]
    if "validation" not in setting:
        first, second = setting["rate_falls_after"]
        short = "" if setting["test_looks"] == EPOCHS else f" of {setting['test_looks']} (60 and 80 of 100 as released)"
        told = f"Probe: rate 30, a tenth after epochs {first} and {second}{short}, nothing chosen; last epoch."
        return [*words, told]
    parts = [
        f"{told['images']:,} images in {told['folds']} fold{'s' if told['folds'] > 1 else ''} at {percent} %"
        if told["folds"]
        else f"nothing to choose on at {percent} %"
        for percent, told in setting["validation"].items()
    ]
    return [*words, f"Rate and length of the probe chosen on train alone, by held-out {', '.join(parts)}."]


def _looks(count: int) -> str:
    return f"Test was looked at {count} times, after every epoch; scores are the last, best_on_test the best of them."
